// Creates the backends that this binary was built with.

#include "absl/strings/str_format.h"
#include "kernels/cpu/device/cpu_device.h"
#include "kernels/device.h"
#include "kernels/gemm_tuning.h"

#ifdef FOREDRAFT_HAS_CUDA
#include "base/status_macros.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/gemm/cublaslt_tune.h"
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

absl::StatusOr<std::string> TuneGemms(
    const std::string& backend, [[maybe_unused]] std::span<const GemmToTune> gemms,
    [[maybe_unused]] const std::function<void(const std::string&)>& report) {
  if (backend == "cpu") {
    return absl::FailedPreconditionError("backend: cpu has one algorithm per GEMM: nothing to tune");
  }
#ifdef FOREDRAFT_HAS_CUDA
  ASSIGN_OR_RETURN(const TuningFile file, TuneCublasLt(gemms, report));
  return WriteTuningFile(file);
#else
  return CreateDevice(backend, {}).status();
#endif
}

}  // namespace foredraft
