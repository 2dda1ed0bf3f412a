#include "base/check.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/quantize.h"

namespace foredraft::cuda {

void GroupedGemm(Stream& stream, const GroupedGemmParams& p) {
  if (p.experts.count == 0) return;
  const PackedWeight& first = p.experts.first;
  CHECK_EQ(p.x.cols, first.k);
  GemmProblem problem = {
      .out = p.out,
      .x = p.x,
      .x_rows = p.x_rows,
      .weight = first,
      .data_stride = p.experts.data_stride,
      .scale_stride = p.experts.scale_stride,
      .ranges = {.offsets = p.expert_offsets, .rows = p.out.rows, .groups = p.experts.count}};
  if (first.dtype == DType::kF8E4M3) {
    const QuantizedShape shape(p.out.rows, first.k);
    problem.x_f8 = shape.Place(static_cast<CudaStream&>(stream).Scratch(shape.bytes));
    QuantizeRows(stream, problem.x_f8, p.x, p.x_rows, p.expert_offsets + p.experts.count, p.out.rows);
  }
  TileGemm(stream, problem);
}

}  // namespace foredraft::cuda
