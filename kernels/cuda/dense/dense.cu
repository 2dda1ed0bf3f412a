// embed, rms_norm, add, silu_mul, copy_rows, to_bf16_rows: one pass over each row.

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/dense/quantize_vec4.h"
#include "kernels/cuda/dense/rms_norm.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/exp.h"

namespace foredraft::cuda {
namespace {

template <bool aligned>
__global__ void __launch_bounds__(kVec4Threads) EmbedKernel(const __grid_constant__ EmbedParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t first = FirstColumnOfThread();
  if (first >= p.out.cols) return;
  const int32_t id = p.ids[r];
  const int64_t row = id >= 0 && id < p.vocab_size ? id : 0;
  const Vec4 x = LoadVec4<aligned>(p.table + row * p.out.cols, first, p.out.cols);
  StoreVec4<aligned>(p.out.row(r), first, p.out.cols, x);
}

struct RmsNormShared {
  float sums[kMaxWarps];
};

// A block per row.
template <bool aligned, int residual_parts>
__global__ void __launch_bounds__(32 * kMaxWarps) RmsNormKernel(const __grid_constant__ RmsNormParams p) {
  GridDependencySync();
  RmsNormShared& shared = SharedStorage<RmsNormShared>();
  NormRow<aligned, residual_parts>(p, static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(blockDim.x),
                                   shared.sums);
}

template <bool aligned>
__global__ void __launch_bounds__(kVec4Threads) AddKernel(const __grid_constant__ AddParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t first = FirstColumnOfThread();
  if (first >= p.out.cols) return;
  const Vec4 x = LoadVec4<aligned>(p.x.row(r), first, p.out.cols);
  Vec4 sum = LoadVec4<aligned>(static_cast<const float*>(p.out.row(r)), first, p.out.cols);
#pragma unroll
  for (int i = 0; i < 4; ++i) sum.x[i] = __fadd_rn(sum.x[i], x.x[i]);
  StoreVec4<aligned>(p.out.row(r), first, p.out.cols, sum);
}

template <bool aligned>
__global__ void __launch_bounds__(kVec4Threads) SiluMulKernel(const __grid_constant__ SiluMulParams p) {
  GridDependencySync();
  const int32_t first = FirstColumnOfThread();
  const int32_t width = p.gate_up.cols / 2;
  // Exits whole warps only: a warp quantises a group of 128 columns together.
  if (first / kQuantGroup * kQuantGroup >= width) return;
  const int32_t rows = p.row_count != nullptr ? *p.row_count : p.gate_up.rows;
  const bool inside = first < width;
  for (int32_t r = static_cast<int32_t>(blockIdx.x); r < rows; r += static_cast<int32_t>(gridDim.x)) {
    const Vec4 gate = inside ? LoadVec4<aligned>(p.gate_up.row(r), first, width) : Vec4{};
    const Vec4 up = inside ? LoadVec4<aligned>(p.gate_up.row(r) + width, first, width) : Vec4{};
    Vec4 out;
#pragma unroll
    for (int i = 0; i < 4; ++i) out.x[i] = GatedSilu(gate.x[i], up.x[i], p.limit);
    if (p.out_f8) StoreQuantized(p.out_f8, r, first, Rounded(out));
    if (p.out && inside) StoreVec4<aligned>(p.out.row(r), first, width, out);
  }
}

template <bool aligned>
__global__ void __launch_bounds__(kVec4Threads) CopyRowsKernel(const __grid_constant__ CopyRowsParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t first = FirstColumnOfThread();
  const int32_t to = p.out_index != nullptr ? p.out_index[r] : r;
  const int32_t from = p.x_index != nullptr ? p.x_index[r] : r;
  if (first >= p.out.cols || to < 0 || from < 0) return;
  StoreVec4<aligned>(p.out.row(to), first, p.out.cols, LoadVec4<aligned>(p.x.row(from), first, p.out.cols));
}

template <bool aligned>
__global__ void __launch_bounds__(kVec4Threads) ToBf16Kernel(const __grid_constant__ ToBf16RowsParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t first = FirstColumnOfThread();
  if (first >= p.out.cols) return;
  StoreVec4<aligned>(p.out.row(r), first, p.out.cols, LoadVec4<aligned>(p.x.row(r), first, p.out.cols));
}

}  // namespace

void Embed(Stream& stream, const EmbedParams& p) {
  const bool aligned = IsVec4Aligned(p.out) && IsVec4Aligned(p.table, p.out.cols, p.out.cols);
  Launch(stream, aligned ? EmbedKernel<true> : EmbedKernel<false>, Vec4Grid(p.out.rows, p.out.cols), p);
}

template <int residual_parts>
void LaunchRmsNorm(Stream& stream, const RmsNormParams& p) {
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(p.x.rows)),
                             .block = dim3(static_cast<uint32_t>(NormThreads(p.x.cols))),
                             .shared_bytes = sizeof(RmsNormShared)};
  Launch(stream,
         IsNormAligned(p) ? RmsNormKernel<true, residual_parts> : RmsNormKernel<false, residual_parts>, shape,
         p);
}

void RmsNorm(Stream& stream, const RmsNormParams& p) {
  switch (p.residual_parts) {
    case 1:
      return LaunchRmsNorm<1>(stream, p);
    case 2:
      return LaunchRmsNorm<2>(stream, p);
    case 4:
      return LaunchRmsNorm<4>(stream, p);
    default:
      CHECK_EQ(p.residual_parts, 8);
      return LaunchRmsNorm<8>(stream, p);
  }
}

void Add(Stream& stream, const AddParams& p) {
  const bool aligned = IsVec4Aligned(p.out) && IsVec4Aligned(p.x);
  Launch(stream, aligned ? AddKernel<true> : AddKernel<false>, Vec4Grid(p.out.rows, p.out.cols), p);
}

void SiluMul(Stream& stream, const SiluMulParams& p) {
  const int32_t width = p.gate_up.cols / 2;
  const bool aligned = IsVec4Aligned(p.out) && IsVec4Aligned(p.gate_up.data, p.gate_up.stride, width);
  LaunchShape shape = Vec4Grid(p.gate_up.rows, width);
  shape.grid.x = BlocksForRows(stream, p.gate_up.rows, shape.grid.y, p.row_count);
  Launch(stream, aligned ? SiluMulKernel<true> : SiluMulKernel<false>, shape, p);
}

void CopyRows(Stream& stream, const CopyRowsParams& p) {
  const bool aligned = IsVec4Aligned(p.out) && IsVec4Aligned(p.x);
  Launch(stream, aligned ? CopyRowsKernel<true> : CopyRowsKernel<false>, Vec4Grid(p.rows, p.out.cols), p);
}

void ToBf16Rows(Stream& stream, const ToBf16RowsParams& p) {
  const bool aligned = IsVec4Aligned(p.out) && IsVec4Aligned(p.x);
  Launch(stream, aligned ? ToBf16Kernel<true> : ToBf16Kernel<false>, Vec4Grid(p.out.rows, p.out.cols), p);
}

}  // namespace foredraft::cuda
