#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace foredraft::cuda {

// Exchanges registers in each quad of lanes: afterwards x[i] of lane q of the quad is what x[q] of lane i
// was. Called by all lanes of a warp.
__device__ __forceinline__ void TransposeQuad(uint32_t (&x)[4]) {
  const bool odd = threadIdx.x % 2 != 0, upper = threadIdx.x / 2 % 2 != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? other : x[i];
    x[i + 1] = odd ? x[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + 2], 2);
    x[i] = upper ? other : x[i];
    x[i + 2] = upper ? x[i + 2] : other;
  }
}

}  // namespace foredraft::cuda
