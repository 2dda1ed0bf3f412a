#pragma once

// The merge of a split into those before it, in registers and device memory.

#include "kernels/cuda/attention/mla_decode.h"

namespace foredraft::cuda {

// Merges a split into the previous ones, whose outputs are `running[j * kStride]`, vector j being that of
// `sums(j)`: columns x and y of the first head, z and w of the second. The merged outputs are in `sums`.
//
// Vectors are loaded kBatch at a time before the first of them is used: a load from the L2 cache takes 270 to
// 450 cycles, and one by one each would wait for the one before it.
template <int kCount, int kStride, class Sums>
__device__ __forceinline__ void CombineOutputs(const float4* running, const CombineStep (&step)[2],
                                               Sums&& sums) {
  constexpr int kBatch = kCount % 8 == 0 ? 8 : kCount % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int begin = 0; begin < kCount; begin += kBatch) {
    float4 before[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) before[j] = running[(begin + j) * kStride];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      float* const merged = sums(begin + j);
      merged[0] = CombineSum(before[j].x, merged[0], step[0]);
      merged[1] = CombineSum(before[j].y, merged[1], step[0]);
      merged[2] = CombineSum(before[j].z, merged[2], step[1]);
      merged[3] = CombineSum(before[j].w, merged[3], step[1]);
    }
  }
}

}  // namespace foredraft::cuda
