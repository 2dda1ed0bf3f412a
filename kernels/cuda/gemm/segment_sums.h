#pragma once

// The sum of a tile's canonical segments (kernels/rules/weight_segments.h) in one block. After each segment a
// thread's sums join a binary counter: sums of 1, 2 and 4 segments wait for their siblings in the tree, so
// that the additions are the tree's. They wait in memory, because three more sets of sums take more registers
// than the main loops leave. A thread reads only what it has written itself, so this needs no barrier.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/gemm/gemm_plan.h"

namespace foredraft::cuda {

// The levels of a tree over `count` sums, a power of two.
constexpr int TreeLevels(int count) { return count == 1 ? 0 : 1 + TreeLevels(count / 2); }
static_assert(TreeLevels(kMaxSegments) == kWaitingSets);

// Sums in memory of a block: [sets, kAccumulators / 4, threads]. The first kNear sets may lie elsewhere than
// the others.
template <int kAccumulators, int kNear>
struct WaitingSums {
  static constexpr int kLevels = kWaitingSets;
  static constexpr int kVectors = kAccumulators / 4;
  float4* near;
  float4* far;
  int threads;

  __device__ __forceinline__ WaitingSums(float4* near_of_block, float4* far_of_block, int thread_count)
      : near(near_of_block + threadIdx.x), far(far_of_block + threadIdx.x), threads(thread_count) {}

  template <int kLevel>
  __device__ __forceinline__ float4& Vector(int i) const {
    if constexpr (kLevel < kNear) return near[(kLevel * kVectors + i) * threads];
    return far[((kLevel - kNear) * kVectors + i) * threads];
  }

  template <int kLevel>
  __device__ __forceinline__ void Keep(const float (&sum)[kAccumulators]) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Vector<kLevel>(i) = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
    }
  }
  template <int kLevel>
  __device__ __forceinline__ void AddTo(float (&sum)[kAccumulators]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 kept = Vector<kLevel>(i);
      sum[4 * i] = __fadd_rn(kept.x, sum[4 * i]);
      sum[4 * i + 1] = __fadd_rn(kept.y, sum[4 * i + 1]);
      sum[4 * i + 2] = __fadd_rn(kept.z, sum[4 * i + 2]);
      sum[4 * i + 3] = __fadd_rn(kept.w, sum[4 * i + 3]);
    }
  }
};

// Waiting sums in registers, for kernels that have some left.
template <int kAccumulators, int levels = kWaitingSets>
struct SumsInRegisters {
  static constexpr int kLevels = levels;
  float sums[kLevels > 0 ? kLevels : 1][kAccumulators];

  template <int kLevel>
  __device__ __forceinline__ void Keep(const float (&sum)[kAccumulators]) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) sums[kLevel][i] = sum[i];
  }
  template <int kLevel>
  __device__ __forceinline__ void AddTo(float (&sum)[kAccumulators]) const {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) sum[i] = __fadd_rn(sums[kLevel][i], sum[i]);
  }
};

// Adds segment `index` of `count`, a power of two, to the others. After the last one `sum` has the sum of
// all.
template <int kLevel = 0, class Waiting, int kAccumulators>
__device__ __forceinline__ void AddSegment(int32_t index, int32_t count, Waiting& waiting,
                                           float (&sum)[kAccumulators]) {
  if constexpr (kLevel < Waiting::kLevels) {
    if ((index >> kLevel & 1) == 0) {
      if (index + 1 < count) waiting.template Keep<kLevel>(sum);
    } else {
      waiting.template AddTo<kLevel>(sum);
      AddSegment<kLevel + 1>(index, count, waiting, sum);
    }
  }
}

}  // namespace foredraft::cuda
