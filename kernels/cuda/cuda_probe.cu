#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_probe.h"

namespace foredraft {
namespace {

struct NothingParams {
  int32_t unused;
};

__global__ void Nothing(const __grid_constant__ NothingParams) {}

absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("backend: cuda, ", what, ": ", cudaGetErrorString(error)));
}

}  // namespace

absl::StatusOr<CudaProbe> ProbeCudaDevice() {
  cudaDeviceProp properties;
  RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, 0), "device 0"));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  RETURN_IF_ERROR(ToStatus(cudaLaunchKernelEx(&config, Nothing, NothingParams{}), "launching a kernel"));
  RETURN_IF_ERROR(ToStatus(cudaDeviceSynchronize(), "running a kernel"));
  return CudaProbe{.gpu = properties.name, .major = properties.major, .minor = properties.minor};
}

}  // namespace foredraft
