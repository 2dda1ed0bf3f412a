// The one place that knows which backends this binary has.

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"

#ifdef FOREDRAFT_HAS_CUDA
#include "base/status_macros.h"
#include "kernels/cuda/cuda_probe.h"
#endif

namespace foredraft {

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const std::string& backend,
                                                     const DeviceOptions& options) {
  if (backend == "cpu") return CpuDevice::Create(options);
#ifdef FOREDRAFT_HAS_CUDA
  if (backend == "cuda") {
    ASSIGN_OR_RETURN(const std::string device, ProbeCudaDevice());
    return absl::UnimplementedError(
        absl::StrFormat("backend: cuda, found %s, but this binary has no CUDA ops yet; allowed cpu", device));
  }
#endif
  return absl::UnimplementedError(absl::StrFormat("backend: \"%s\", this binary has cpu", backend));
}

}  // namespace foredraft
