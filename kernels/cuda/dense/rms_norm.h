#pragma once

// The RMS norm of one row by one block: its factor, and all of rms_norm, which is a kernel of its own and a
// part of kv_write. Columns 4 g .. 4 g + 3 belong to thread g % blockDim.x, and blockDim.x depends on the
// column count alone; so does the order of the sum.

#include "kernels/cuda/common/block_reduce.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/dense/quantize_vec4.h"
#include "kernels/cuda/device/kernels.h"

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

// ---- rms_norm ----

inline constexpr int kNormHeld = 4;  // Vec4s that a thread keeps in registers: 448 threads for 7168 columns

// The block size of the norm, which fixes the order of its sum.
inline int32_t NormThreads(int32_t cols) { return static_cast<int32_t>(RmsThreads(cols, 4 * kNormHeld)); }

inline bool IsNormAligned(const RmsNormParams& p) {
  return IsVec4Aligned(p.x) && IsVec4Aligned(p.residual) && IsVec4Aligned(p.sum) && IsVec4Aligned(p.out) &&
         IsVec4Aligned(p.out_bf16) && IsVec4Aligned(p.weight, p.x.cols, p.x.cols) &&
         IsVec4Aligned(p.residual_bias, p.x.cols, p.x.cols);
}

// Columns [first, first + 4), or zeros past the last column. Called by the whole warp.
template <bool aligned>
__device__ __forceinline__ Vec4 LoadInside(const float* row, int32_t first, int32_t cols) {
  return first < cols ? LoadVec4<aligned>(row, first, cols) : Vec4{};
}

// x + residual, which is stored as the sum; x if there is no residual.
template <bool aligned>
__device__ __forceinline__ Vec4 AddResidual(const RmsNormParams& p, int32_t r, int32_t first, Vec4 x,
                                            const Vec4& residual) {
  if (!p.residual || first >= p.x.cols) return x;
#pragma unroll
  for (int i = 0; i < 4; ++i) x.x[i] = __fadd_rn(x.x[i], residual.x[i]);
  StoreVec4<aligned>(p.sum.row(r), first, p.x.cols, x);
  return x;
}

// The sum of `count` parts of a row by the tree (kernels/rules/weight_segments.h); row: the first part's.
template <bool aligned, int count>
__device__ __forceinline__ Vec4 SumResidualParts(const float* row, int64_t part_stride, int32_t first,
                                                 int32_t cols) {
  if constexpr (count == 1) {
    return LoadInside<aligned>(row, first, cols);
  } else {
    Vec4 sum = {};
    // All eight parts at once would not fit beside the row that the thread holds in registers. Sums begin
    // with -0, because adding a number to -0 gives its own bits.
#pragma unroll
    for (int c = 0; c < 4; ++c) sum.x[c] = -0.0f;
#pragma unroll(count <= 4 ? 2 : 1)
    for (int i = 0; i < 2; ++i, row += count / 2 * part_stride) {
      const Vec4 half = SumResidualParts<aligned, count / 2>(row, part_stride, first, cols);
#pragma unroll
      for (int c = 0; c < 4; ++c) sum.x[c] = __fadd_rn(sum.x[c], half.x[c]);
    }
    return sum;
  }
}

template <bool aligned, int count>
__device__ __forceinline__ Vec4 LoadResidual(const RmsNormParams& p, int32_t r, int32_t first) {
  if (!p.residual) return Vec4{};
  Vec4 sum =
      SumResidualParts<aligned, count>(p.residual.row(r), p.x.rows * p.residual.stride, first, p.x.cols);
  if (count > 1 && p.residual_bias != nullptr) {
    const Vec4 bias = LoadInside<aligned>(p.residual_bias, first, p.x.cols);
#pragma unroll
    for (int c = 0; c < 4; ++c) sum.x[c] = __fadd_rn(sum.x[c], bias.x[c]);
  }
  return sum;
}

// Norms and stores columns [first + i step, + 4) of row r, i < n. Called by the whole warp; x is 0 past the
// last column.
template <bool aligned, int n>
__device__ __forceinline__ void StoreNormed(const RmsNormParams& p, int32_t r, int32_t first, int32_t step,
                                            const Vec4 (&x)[n], const Vec4 (&weight)[n], float factor) {
  const int32_t cols = p.x.cols;
  Vec4 rounded[n];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const Vec4 y = Normed(x[i], weight[i], factor);
    rounded[i] = Rounded(y);
    if (first + i * step >= cols) continue;
    if (p.out_bf16) StoreVec4<aligned>(p.out_bf16.row(r), first + i * step, cols, y);
    if (p.out) StoreVec4<aligned>(p.out.row(r), first + i * step, cols, y);
  }
  if (p.out_f8) StoreQuantized(p.out_f8, r, first, step, rounded);
}

// Norms row r with the block's first `threads` threads; further ones only add zeros to the sum, so the bits
// are those of a block of `threads`. The row stays in registers between the two passes; columns past
// kNormHeld Vec4s per thread are read again. A thread writes only columns that it reads, so `out` may be x. A
// warp has 128 adjacent columns at a time, and all its lanes continue while the first of them is in the row,
// so that it can quantise them. residual_parts is p's. `shared`: a float per warp of the block.
template <bool aligned, int residual_parts = 1>
__device__ __forceinline__ void NormRow(const RmsNormParams& p, int32_t r, int32_t threads, float* shared) {
  const int32_t cols = p.x.cols;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t past_end = (cols + kQuantGroup - 1) / kQuantGroup * kQuantGroup;
  const int32_t first = thread < threads ? thread * 4 : past_end;
  const int32_t first_of_warp = first / kQuantGroup * kQuantGroup;
  const int32_t step = threads * 4;
  const float* const x = p.x.row(r);
  // Issues all loads before their first use, which would otherwise wait for each of them in turn.
  Vec4 held[kNormHeld], residual[kNormHeld];
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i) {
    held[i] = LoadInside<aligned>(x, first + i * step, cols);
    residual[i] = LoadResidual<aligned, residual_parts>(p, r, first + i * step);
  }
  IssueLoads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i) {
    held[i] = AddResidual<aligned>(p, r, first + i * step, held[i], residual[i]);
    sum = AddSquares(sum, held[i]);
  }
  for (int32_t column = first + kNormHeld * step; column < cols; column += step) {
    sum = AddSquares(sum, AddResidual<aligned>(p, r, column, LoadVec4<aligned>(x, column, cols),
                                               LoadResidual<aligned, residual_parts>(p, r, column)));
  }
  Vec4 weight[kNormHeld];
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i) weight[i] = LoadInside<aligned>(p.weight, first + i * step, cols);
  const float factor = RmsFactor(sum, cols, p.eps, shared);
  StoreNormed<aligned>(p, r, first, step, held, weight, factor);
  const float* const normed = p.residual ? p.sum.row(r) : x;
  for (int32_t later = kNormHeld * step; first_of_warp + later < cols; later += step) {
    const Vec4 later_x[1] = {LoadInside<aligned>(normed, first + later, cols)};
    const Vec4 later_weight[1] = {LoadInside<aligned>(p.weight, first + later, cols)};
    StoreNormed<aligned>(p, r, first + later, step, later_x, later_weight, factor);
  }
}

}  // namespace foredraft::cuda
