#include "base/check.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/kernels.h"

namespace foredraft::cuda {

// The heads are groups that all have the same rows, each with its own columns of x and of the output.
void HeadGemm(Stream& stream, const HeadGemmParams& p) {
  if (p.heads.count == 0) return;
  const PackedWeight& first = p.heads.first;
  const bool f8 = first.dtype == DType::kF8E4M3;
  GemmProblem problem = {.out_bf16 = p.out,
                         .x = p.x,
                         .weight = first,
                         .data_stride = p.heads.data_stride,
                         .scale_stride = p.heads.scale_stride,
                         .x_group_stride = p.x_head_stride,
                         .out_group_stride = p.out_head_stride,
                         .ranges = {.offsets = nullptr, .rows = p.x.rows, .groups = p.heads.count}};
  if (!f8) {
    TileGemm(stream, problem);
    return;
  }
  // Every head quantises its own columns: one after another, as no real model keeps these weights in FP8.
  const QuantizedShape shape(p.x.rows, first.k);
  problem.x_f8 = shape.Place(static_cast<CudaStream&>(stream).Scratch(shape.bytes));
  problem.ranges.groups = 1;
  for (int32_t head = 0; head < p.heads.count; ++head) {
    const Matrix<const bf16> x = p.x.columns(head * p.x_head_stride, first.k);
    QuantizeRows(stream, problem.x_f8, x, nullptr, nullptr, x.rows);
    problem.weight.data = static_cast<const unsigned char*>(first.data) + head * p.heads.data_stride;
    problem.weight.scales = first.scales + head * p.heads.scale_stride;
    problem.out_bf16 = p.out.columns(head * p.out_head_stride, first.n);
    TileGemm(stream, problem);
  }
}

}  // namespace foredraft::cuda
