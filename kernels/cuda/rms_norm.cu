#include "kernels/cuda/kernels.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rms_factor.h"

namespace foredraft::cuda {
namespace {

constexpr int kHeld = 4;  // fours of a thread: 448 threads for 7168 columns

struct RmsNormShared {
  float sums[kMaxWarps];
};

template <bool aligned>
__device__ void StoreNormed(const RmsNormParams& p, int32_t r, int32_t first, const Four& x, float factor) {
  const int32_t cols = p.x.cols;
  const Four y = Normed(x, LoadFour<aligned>(p.weight, first, cols), factor);
  if (p.out_bf16) StoreFour<aligned>(p.out_bf16.row(r), first, cols, y);
  if (p.out) StoreFour<aligned>(p.out.row(r), first, cols, y);
}

// A block per row, which stays in registers between the two passes; what is past kHeld fours (rows wider than
// 16,384) is read again. A thread writes no column but those it reads: `out` may be x.
template <bool aligned>
__global__ void __launch_bounds__(32 * kMaxWarps) RmsNormKernel(const __grid_constant__ RmsNormParams p) {
  RmsNormShared& shared = SharedStorage<RmsNormShared>();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t cols = p.x.cols;
  const float* const x = p.x.row(r);
  const int32_t first = static_cast<int32_t>(threadIdx.x) * 4;
  const int32_t step = static_cast<int32_t>(blockDim.x) * 4;
  Four held[kHeld];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * step >= cols) break;
    held[i] = LoadFour<aligned>(x, first + i * step, cols);
    sum = AddSquares(sum, held[i]);
  }
  for (int32_t column = first + kHeld * step; column < cols; column += step) {
    sum = AddSquares(sum, LoadFour<aligned>(x, column, cols));
  }
  const float factor = RmsFactor(sum, cols, p.eps, shared.sums);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * step >= cols) break;
    StoreNormed<aligned>(p, r, first + i * step, held[i], factor);
  }
  for (int32_t column = first + kHeld * step; column < cols; column += step) {
    StoreNormed<aligned>(p, r, column, LoadFour<aligned>(x, column, cols), factor);
  }
}

}  // namespace

void RmsNorm(Stream& stream, const RmsNormParams& p) {
  const bool aligned =
      InFours(p.x) && InFours(p.out) && InFours(p.out_bf16) && InFours(p.weight, p.x.cols, p.x.cols);
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(p.x.rows)),
                             .block = dim3(RmsThreads(p.x.cols, 4 * kHeld)),
                             .shared_bytes = sizeof(RmsNormShared)};
  Launch(stream, aligned ? RmsNormKernel<true> : RmsNormKernel<false>, shape, p);
}

}  // namespace foredraft::cuda
