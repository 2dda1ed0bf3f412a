// The one place that knows which backends this binary has.

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"

namespace foredraft {

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const std::string& backend,
                                                     const DeviceOptions& options) {
  if (backend == "cpu") return CpuDevice::Create(options);
  return absl::UnimplementedError(absl::StrFormat("backend: \"%s\", this binary has cpu", backend));
}

}  // namespace foredraft
