#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_probe.h"

namespace foredraft {
namespace {

__global__ void Nothing() {}

absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("backend: cuda, ", what, ": ", cudaGetErrorString(error)));
}

}  // namespace

absl::StatusOr<std::string> ProbeCudaDevice() {
  cudaDeviceProp properties;
  absl::Status status = ToStatus(cudaGetDeviceProperties(&properties, 0), "device 0");
  if (!status.ok()) return status;
  Nothing<<<1, 1>>>();
  status = ToStatus(cudaDeviceSynchronize(), "running a kernel");
  if (!status.ok()) return status;
  return absl::StrCat(properties.name, ", sm_", properties.major, properties.minor);
}

}  // namespace foredraft
