#include "kernels/cuda/kernels.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/quantize_four.h"
#include "kernels/cuda/rms_factor.h"

namespace foredraft::cuda {
namespace {

constexpr int kHeld = 4;  // fours of a thread: 448 threads for 7168 columns

struct RmsNormShared {
  float sums[kMaxWarps];
};

// Columns first .. first + 3, or none where they are past the last: but the whole warp calls.
template <bool aligned>
__device__ Four LoadInside(const float* row, int32_t first, int32_t cols) {
  return first < cols ? LoadFour<aligned>(row, first, cols) : Four{};
}

// What is normed; where a residual is added the sum is kept.
template <bool aligned>
__device__ Four LoadSum(const RmsNormParams& p, int32_t r, int32_t first) {
  const int32_t cols = p.x.cols;
  Four x = LoadInside<aligned>(p.x.row(r), first, cols);
  if (!p.residual || first >= cols) return x;
  const Four residual = LoadFour<aligned>(p.residual.row(r), first, cols);
#pragma unroll
  for (int i = 0; i < 4; ++i) x.x[i] = __fadd_rn(x.x[i], residual.x[i]);
  StoreFour<aligned>(p.sum.row(r), first, cols, x);
  return x;
}

template <bool aligned>
__device__ void StoreNormed(const RmsNormParams& p, int32_t r, int32_t first, const Four& x, float factor) {
  const int32_t cols = p.x.cols;
  const Four y = Normed(x, LoadInside<aligned>(p.weight, first, cols), factor);
  if (p.out_f8) StoreQuantized(p.out_f8, r, first, Rounded(y));
  if (first >= cols) return;
  if (p.out_bf16) StoreFour<aligned>(p.out_bf16.row(r), first, cols, y);
  if (p.out) StoreFour<aligned>(p.out.row(r), first, cols, y);
}

// A block per row, which stays in registers between the two passes; what is past kHeld fours (rows wider than
// 16,384) is read again. A thread writes no column but those it reads: `out` may be x. A warp has 128
// adjacent columns at a time, and goes on while the first of them is in the row: so it can quantise them.
template <bool aligned>
__global__ void __launch_bounds__(32 * kMaxWarps) RmsNormKernel(const __grid_constant__ RmsNormParams p) {
  AfterPrevious();
  RmsNormShared& shared = SharedStorage<RmsNormShared>();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t cols = p.x.cols;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * 4;
  const int32_t first_of_warp = first / kQuantGroup * kQuantGroup;
  const int32_t step = static_cast<int32_t>(blockDim.x) * 4;
  Four held[kHeld];
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
  const bool aligned = InFours(p.x) && InFours(p.residual) && InFours(p.sum) && InFours(p.out) &&
                       InFours(p.out_bf16) && InFours(p.weight, p.x.cols, p.x.cols);
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(p.x.rows)),
                             .block = dim3(RmsThreads(p.x.cols, 4 * kHeld)),
                             .shared_bytes = sizeof(RmsNormShared)};
  Launch(stream, aligned ? RmsNormKernel<true> : RmsNormKernel<false>, shape, p);
}

}  // namespace foredraft::cuda
