#include "base/check.h"
#include "kernels/cuda/cublaslt_gemm.h"
#include "kernels/cuda/gemm_hopper.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/quantize.h"

namespace foredraft::cuda {

// One group, whose row count the host knows. With FP8 weights, BF16 rows are quantised first. The kernel:
//
// clang-format off
//   weight                                  | no tuning file | tuning file has the shape and form
//   FP8 or BF16, rows a multiple of 128 B   | HopperGemm     | cuBLASLt, the entry's algorithm
//   any other                               | TileGemm       | TileGemm
// clang-format on
//
// head_gemm and grouped_gemm choose HopperGemm or TileGemm by the same rule. Without a tuning file cuBLASLt
// is not used: only `foredraft tune` checks that an algorithm gives a row the same bits for all row counts.
void Gemm(Stream& stream, const GemmParams& p) {
  CHECK_EQ(p.x.cols, p.weight.k);
  auto& cuda = static_cast<CudaStream&>(stream);
  if (cuda.tuned_gemms() != nullptr && cuda.tuned_gemms()->Supports(p)) {
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
    problem.x_f8 = shape.View(cuda.Scratch(shape.bytes));
    QuantizeRows(stream, problem.x_f8, p.x, nullptr, nullptr, p.x.rows);
  }
  // FP8: the weight's shape alone decides. BF16: both kernels give the same bits, so the alignment of x may
  // decide, too.
  if (HopperSupports(p.weight) && (f8 || TmaCanLoad(p.x, 0))) {
    HopperGemm(stream, problem);
  } else {
    TileGemm(stream, problem);
  }
}

}  // namespace foredraft::cuda
