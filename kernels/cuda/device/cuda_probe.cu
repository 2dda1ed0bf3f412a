#include <cuda_runtime.h>

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/cuda_probe.h"

namespace foredraft {
namespace {

struct NothingParams {
  int32_t unused;
};

__global__ void Nothing(const __grid_constant__ NothingParams) {}

absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return absl::UnavailableError(absl::StrCat("backend: cuda, ", what, ": ", cudaGetErrorString(error),
                                             visible != nullptr ? "; CUDA_VISIBLE_DEVICES is " : "",
                                             visible != nullptr ? visible : ""));
}

// The error of a binary that has no code for this GPU.
absl::Status NoCodeFor(const cudaDeviceProp& gpu) {
  // Code of 8.0, 10.0 and 12.0 runs on later GPUs of the same major version.
  const int minor = gpu.major == 8 && gpu.minor == 9 ? 9 : 0;
  return absl::UnavailableError(
      absl::StrCat("backend: cuda, ", gpu.name, " has compute capability ", gpu.major, ".", gpu.minor,
                   ", for which this binary has no code: build it with -DFOREDRAFT_CUDA_ARCHS=", gpu.major,
                   minor, gpu.major == 9 ? "a" : "", " (docs/status.md: which GPU gets which kernels)"));
}

// "GPU-8f3c1c5a-..." of 16 bytes, as nvidia-smi writes it.
std::string UuidText(const cudaUUID_t& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

}  // namespace

absl::StatusOr<CudaProbe> ProbeCudaDevice() {
  int device = 0;
  cudaDeviceProp properties;
  char bus_id[32] = "";
  RETURN_IF_ERROR(ToStatus(cudaGetDevice(&device), "current device"));
  RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, device), "the device"));
  RETURN_IF_ERROR(ToStatus(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device), "PCI bus id"));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  const cudaError_t launched = cudaLaunchKernelEx(&config, Nothing, NothingParams{});
  if (launched == cudaErrorNoKernelImageForDevice) return NoCodeFor(properties);
  RETURN_IF_ERROR(ToStatus(launched, "launching a kernel"));
  RETURN_IF_ERROR(ToStatus(cudaDeviceSynchronize(), "running a kernel"));
  return CudaProbe{.gpu = properties.name,
                   .hardware_id = absl::StrCat(UuidText(properties.uuid), " at ", bus_id),
                   .major = properties.major,
                   .minor = properties.minor};
}

}  // namespace foredraft
