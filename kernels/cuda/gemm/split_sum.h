#pragma once

// Split k: the blocks of a tile leave their sums in device memory, and the one that comes last adds them up,
// in the order of the splits. Each block stores its sums, synchronises its threads, calls CountSplit with one
// of them, and synchronises again.

#include <cstdint>

#include "kernels/cuda/common/ptx_hopper.h"
#include "kernels/cuda/gemm/gemm_plan.h"

namespace foredraft::cuda {

// Counts a split of a tile. True: it is the last one, and after a barrier the block's threads see the sums of
// all. The fences of this one thread are cumulative (PTX ISA, memory consistency model): the barrier has
// ordered the other threads' stores before the first of them.
__device__ __forceinline__ bool CountSplit(uint32_t* counter, int32_t splits) {
  FenceGpu();
  const bool last = atomicAdd(counter, 1u) + 1 == static_cast<uint32_t>(splits);
  if (last) *counter = 0;  // for the next launch
  FenceGpu();
  return last;
}

// The sum of a thread's vectors of all splits, which lie `stride` apart. All loads come first: each takes the
// time of an L2 access.
__device__ __forceinline__ float4 SumSplits(const float4* parts, int64_t stride, int32_t splits) {
  float4 values[kMaxGemmSplits];
#pragma unroll
  for (int32_t split = 0; split < kMaxGemmSplits; ++split) {
    if (split < splits) values[split] = __ldcg(parts + split * stride);
  }
  float4 total = values[0];
#pragma unroll
  for (int32_t split = 1; split < kMaxGemmSplits; ++split) {
    if (split >= splits) break;
    total.x = __fadd_rn(total.x, values[split].x);
    total.y = __fadd_rn(total.y, values[split].y);
    total.z = __fadd_rn(total.z, values[split].z);
    total.w = __fadd_rn(total.w, values[split].w);
  }
  return total;
}

}  // namespace foredraft::cuda
