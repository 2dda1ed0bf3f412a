#include "kernels/cuda/kernels.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/quantize_vec4.h"
#include "kernels/cuda/rms_factor.h"

namespace foredraft::cuda {
namespace {

constexpr int kHeld = 4;  // Vec4s that a thread keeps in registers: 448 threads for 7168 columns

struct RmsNormShared {
  float sums[kMaxWarps];
};

// Columns [first, first + 4), or zeros past the last column. Called by the whole warp.
template <bool aligned>
__device__ Vec4 LoadInside(const float* row, int32_t first, int32_t cols) {
  return first < cols ? LoadVec4<aligned>(row, first, cols) : Vec4{};
}

// The input of the norm; with a residual, adds it and stores the sum.
template <bool aligned>
__device__ Vec4 LoadSum(const RmsNormParams& p, int32_t r, int32_t first) {
  const int32_t cols = p.x.cols;
  Vec4 x = LoadInside<aligned>(p.x.row(r), first, cols);
  if (!p.residual || first >= cols) return x;
  const Vec4 residual = LoadVec4<aligned>(p.residual.row(r), first, cols);
#pragma unroll
  for (int i = 0; i < 4; ++i) x.x[i] = __fadd_rn(x.x[i], residual.x[i]);
  StoreVec4<aligned>(p.sum.row(r), first, cols, x);
  return x;
}

template <bool aligned>
__device__ void StoreNormed(const RmsNormParams& p, int32_t r, int32_t first, const Vec4& x, float factor) {
  const int32_t cols = p.x.cols;
  const Vec4 y = Normed(x, LoadInside<aligned>(p.weight, first, cols), factor);
  if (p.out_f8) StoreQuantized(p.out_f8, r, first, Rounded(y));
  if (first >= cols) return;
  if (p.out_bf16) StoreVec4<aligned>(p.out_bf16.row(r), first, cols, y);
  if (p.out) StoreVec4<aligned>(p.out.row(r), first, cols, y);
}

// A block per row. The row stays in registers between the two passes; columns past kHeld Vec4s per thread
// (rows wider than 16,384) are read again. A thread writes only columns that it reads, so `out` may be x. A
// warp has 128 adjacent columns at a time, and all its lanes continue while the first of them is in the row,
// so that it can quantise them.
template <bool aligned>
__global__ void __launch_bounds__(32 * kMaxWarps) RmsNormKernel(const __grid_constant__ RmsNormParams p) {
  GridDependencySync();
  RmsNormShared& shared = SharedStorage<RmsNormShared>();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t cols = p.x.cols;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * 4;
  const int32_t first_of_warp = first / kQuantGroup * kQuantGroup;
  const int32_t step = static_cast<int32_t>(blockDim.x) * 4;
  Vec4 held[kHeld];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first_of_warp + i * step >= cols) break;
    held[i] = LoadSum<aligned>(p, r, first + i * step);
    sum = AddSquares(sum, held[i]);
  }
  for (int32_t column = first + kHeld * step; column < cols; column += step) {
    sum = AddSquares(sum, LoadSum<aligned>(p, r, column));
  }
  const float factor = RmsFactor(sum, cols, p.eps, shared.sums);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first_of_warp + i * step >= cols) break;
    StoreNormed<aligned>(p, r, first + i * step, held[i], factor);
  }
  const float* const x = p.residual ? p.sum.row(r) : p.x.row(r);
  for (int32_t later = kHeld * step; first_of_warp + later < cols; later += step) {
    StoreNormed<aligned>(p, r, first + later, LoadInside<aligned>(x, first + later, cols), factor);
  }
}

}  // namespace

void RmsNorm(Stream& stream, const RmsNormParams& p) {
  const bool aligned = IsVec4Aligned(p.x) && IsVec4Aligned(p.residual) && IsVec4Aligned(p.sum) &&
                       IsVec4Aligned(p.out) && IsVec4Aligned(p.out_bf16) &&
                       IsVec4Aligned(p.weight, p.x.cols, p.x.cols);
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(p.x.rows)),
                             .block = dim3(RmsThreads(p.x.cols, 4 * kHeld)),
                             .shared_bytes = sizeof(RmsNormShared)};
  Launch(stream, aligned ? RmsNormKernel<true> : RmsNormKernel<false>, shape, p);
}

}  // namespace foredraft::cuda
