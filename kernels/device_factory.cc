// The one place that knows which backends this binary has.

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"

#ifdef FOREDRAFT_HAS_CUDA
#include "kernels/cuda/cuda_device.h"
#endif

namespace foredraft {

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const std::string& backend,
                                                     const DeviceOptions& options) {
  if (backend == "cpu") return CpuDevice::Create(options);
#ifdef FOREDRAFT_HAS_CUDA
  if (backend == "cuda") return CudaDevice::Create(options);
  constexpr char kBackends[] = "cpu, cuda";
#else
  constexpr char kBackends[] = "cpu";
#endif
  return absl::UnimplementedError(absl::StrFormat("backend: \"%s\", this binary has %s", backend, kBackends));
}

}  // namespace foredraft
