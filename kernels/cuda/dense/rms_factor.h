#pragma once

// The factor of an RMS norm, computed by one block for one row. Columns 4 g .. 4 g + 3 belong to thread
// g % blockDim.x, and blockDim.x depends on the column count alone; so does the order of the sum.

#include "kernels/cuda/common/block_reduce.h"
#include "kernels/cuda/common/vec4.h"

namespace foredraft::cuda {

// Adds four squares to a thread's sum, in ascending order.
__device__ __forceinline__ float AddSquares(float sum, const Vec4& four) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sum = __fadd_rn(sum, __fmul_rn(four.x[i], four.x[i]));
  return sum;
}

// 1 / sqrt(mean(x^2) + eps) from the sum of the squares.
__device__ __forceinline__ float RmsFactorOfSum(float sum, int32_t cols, float eps) {
  const float mean = __fdiv_rn(sum, static_cast<float>(cols));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// RmsFactorOfSum of the threads' sums, returned to every thread. `shared`: a float per warp.
__device__ __forceinline__ float RmsFactor(float sum, int32_t cols, float eps, float* shared) {
  return RmsFactorOfSum(BlockReduce(sum, Sum{}, shared), cols, eps);
}

// weight * (x * factor).
__device__ __forceinline__ Vec4 Normed(const Vec4& x, const Vec4& weight, float factor) {
  Vec4 y;
#pragma unroll
  for (int i = 0; i < 4; ++i) y.x[i] = __fmul_rn(weight.x[i], __fmul_rn(x.x[i], factor));
  return y;
}

// The block size for `cols` columns, `per_thread` (a multiple of 4) per thread, at most kMaxWarps warps.
inline uint32_t RmsThreads(int32_t cols, int32_t per_thread) {
  const int32_t warps = (cols + 32 * per_thread - 1) / (32 * per_thread);
  return static_cast<uint32_t>(32 * (warps < 1 ? 1 : warps > kMaxWarps ? kMaxWarps : warps));
}

}  // namespace foredraft::cuda
