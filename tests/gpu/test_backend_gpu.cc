#include <cuda_runtime.h>

#include "kernels/cuda/device/cuda_memory.h"
#include "tests/ops/test_backend.h"

namespace foredraft {

std::string TestBackend() { return "cuda"; }

void UseDeviceOfRank(int rank) {
  int count = 0;
  CheckCuda(cudaGetDeviceCount(&count), "count the GPUs");
  CheckCuda(cudaSetDevice(rank % count), "choose a GPU");
}

}  // namespace foredraft
