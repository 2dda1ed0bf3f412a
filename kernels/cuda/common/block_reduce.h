#pragma once

// A reduction over a block's threads in a fixed order: lanes by a butterfly, then warps ascending. The order
// depends on the block size alone.

#include <cuda_runtime.h>

#include <cstdint>

namespace foredraft::cuda {

inline constexpr int kMaxWarps = 32;

struct Largest {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// Returns the result to every thread. `shared` has a T per warp; the caller separates earlier uses of it by a
// barrier, and may reuse it after this call.
template <class T, class Join>
__device__ T BlockReduce(T value, Join join, T* shared) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  const int warps = static_cast<int>(blockDim.x / 32);
  if (warps == 1) return value;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int warp = 1; warp < warps; ++warp) value = join(value, shared[warp]);
  __syncthreads();
  return value;
}

}  // namespace foredraft::cuda
