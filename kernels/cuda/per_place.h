#ifndef FOREDRAFT_KERNELS_CUDA_PER_PLACE_H_
#define FOREDRAFT_KERNELS_CUDA_PER_PLACE_H_

// A thread for each place of the bucket: a few integers each, so that latency is all there is. Small blocks:
// the threads' chains of loads run on as many multiprocessors as there are warps.

#include "kernels/cuda/cuda_stream.h"

namespace foredraft::cuda {

inline constexpr int32_t kPlacesPerBlock = 32;

inline LaunchShape ThreadPerPlace(int32_t places) {
  return {.grid = dim3((places + kPlacesPerBlock - 1) / kPlacesPerBlock), .block = dim3(kPlacesPerBlock)};
}

__device__ __forceinline__ int32_t PlaceOfThread() {
  return static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
}

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_PER_PLACE_H_
