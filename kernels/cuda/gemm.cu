#include "base/check.h"
#include "kernels/cuda/cublaslt_gemm.h"
#include "kernels/cuda/gemm_hopper.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/quantize.h"

namespace foredraft::cuda {

// One group, whose rows the host knows. FP8 weights: rows that come as BF16 are quantised first. Which kernel
// runs:
//
//   weight                            | without a tuning file | where the tuning file has the shape and form
//   FP8 or BF16, rows of whole 128 B  | HopperGemm            | cuBLASLt, the entry's algorithm
//   any other                         | TileGemm              | TileGemm
//
// head_gemm and grouped_gemm: HopperGemm or TileGemm by the same rule. cuBLASLt has no place of its own
// without a file: that its algorithm gives a row the same bits in all numbers of rows is what `foredraft
// tune` proves.
void Gemm(Stream& stream, const GemmParams& p) {
  CHECK_EQ(p.x.cols, p.weight.k);
  auto& cuda = static_cast<CudaStream&>(stream);
  if (cuda.tuned_gemms() != nullptr && cuda.tuned_gemms()->Takes(p)) {
    cuda.tuned_gemms()->Run(cuda, p);
    return;
  }
  GemmProblem problem = {.out = p.out,
                         .out_bf16 = p.out_bf16,
                         .x = p.x,
                         .bias = p.bias,
                         .weight = p.weight,
                         .ranges = {.offsets = nullptr, .rows = p.x.rows, .groups = 1}};
  const bool f8 = p.weight.dtype == DType::kF8E4M3;
  if (f8 && p.x_f8) {
    problem.x_f8 = p.x_f8;
  } else if (f8) {
    const QuantizedShape shape(p.x.rows, p.x.cols);
    problem.x_f8 = shape.Place(cuda.Scratch(shape.bytes));
    QuantizeRows(stream, problem.x_f8, p.x, nullptr, nullptr, p.x.rows);
  }
  // FP8: the weight's shape alone decides. BF16: both kernels give the same bits, so that the place of x may
  // choose, too.
  if (HopperTakes(p.weight) && (f8 || HopperReads(p.x, 0))) {
    HopperGemm(stream, problem);
  } else {
    TileGemm(stream, problem);
  }
}

}  // namespace foredraft::cuda
