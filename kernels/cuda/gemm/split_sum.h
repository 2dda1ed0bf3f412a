#pragma once

// Split k: the blocks of a tile leave their sums in device memory, and the last block adds them up, in the
// order of the splits or by the tree of segments. Each block stores its sums, synchronises its threads, calls
// CountSplit with one of them, and synchronises again.

#include <cstdint>

#include "kernels/cuda/common/ptx_hopper.h"
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/gemm/segment_sums.h"

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

// values[0] = the sum of the first `count` values by the binary tree; `count` is a power of two, or more than
// kCount.
template <int kCount, int kVectors>
__device__ __forceinline__ void SumTree(int32_t count, float4 (&values)[kCount][kVectors]) {
#pragma unroll
  for (int width = 1; width < kCount; width *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * width) {
      if (i + width >= count) break;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        values[i][v].x = __fadd_rn(values[i][v].x, values[i + width][v].x);
        values[i][v].y = __fadd_rn(values[i][v].y, values[i + width][v].y);
        values[i][v].z = __fadd_rn(values[i][v].z, values[i + width][v].z);
        values[i][v].w = __fadd_rn(values[i][v].w, values[i + width][v].w);
      }
    }
  }
}

// Adds up a thread's vectors of all splits in `sums`. `parts` has the vectors of one split after another,
// each `vector_stride` from the one before. kLoads of them are in flight, since each takes the time of an L2
// access. With kTree the splits share segments: they are a power of two, and the tree adds them
// (segment_sums.h).
template <int kVectors, int kLoads, bool kTree>
__device__ __forceinline__ void SumSplits(const float4* parts, int64_t vector_stride, int32_t splits,
                                          float (&sums)[4 * kVectors]) {
  constexpr int kSplits = kVectors >= kLoads ? 1 : kLoads / kVectors;  // at once
  // Each round's sum is a subtree.
  [[maybe_unused]] SumsInRegisters<4 * kVectors, TreeLevels(kMaxGemmSplits / kSplits)> waiting;
#pragma unroll
  for (float& sum : sums) sum = -0.0f;  // -0 + x has the bits of x
  for (int32_t first = 0; first < splits; first += kSplits) {
    float4 values[kSplits][kVectors];
#pragma unroll
    for (int i = 0; i < kSplits; ++i) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = ((first + i) * kVectors + v) * vector_stride;
        if (first + i < splits) values[i][v] = __ldcg(parts + at);
      }
    }
    if constexpr (kTree) {
      SumTree<kSplits>(splits - first, values);
#pragma unroll
      for (float& sum : sums) sum = -0.0f;
    }
#pragma unroll
    for (int i = 0; i < kSplits; ++i) {
      if (first + i >= splits || (kTree && i > 0)) break;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        sums[4 * v] = __fadd_rn(sums[4 * v], values[i][v].x);
        sums[4 * v + 1] = __fadd_rn(sums[4 * v + 1], values[i][v].y);
        sums[4 * v + 2] = __fadd_rn(sums[4 * v + 2], values[i][v].z);
        sums[4 * v + 3] = __fadd_rn(sums[4 * v + 3], values[i][v].w);
      }
    }
    if constexpr (kTree) AddSegment(first / kSplits, (splits + kSplits - 1) / kSplits, waiting, sums);
  }
}

}  // namespace foredraft::cuda
