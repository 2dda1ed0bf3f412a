// gemm, head_gemm and grouped_gemm: activations quantised where the weights are FP8, then one of the kernels.

#include "base/check.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/quantize.h"

namespace foredraft::cuda {

void Gemm(Stream& stream, const GemmParams& p) {
  CHECK_EQ(p.x.cols, p.weight.k);
  GemmProblem problem = {.out = p.out,
                         .out_bf16 = p.out_bf16,
                         .x = p.x,
                         .bias = p.bias,
                         .weight = p.weight,
                         .ranges = {.offsets = nullptr, .rows = p.x.rows, .groups = 1}};
  if (p.weight.dtype == DType::kF8E4M3) {
    const QuantizedShape shape(p.x.rows, p.x.cols);
    problem.x_f8 = shape.Place(static_cast<CudaStream&>(stream).Scratch(shape.bytes));
    QuantizeRows(stream, problem.x_f8, p.x, nullptr, nullptr, p.x.rows);
  }
  TileGemm(stream, problem);
}

}  // namespace foredraft::cuda
