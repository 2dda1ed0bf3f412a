#include "base/check.h"
#include "kernels/cuda/gemm_gate_up.h"
#include "kernels/cuda/gemm_gather.h"
#include "kernels/cuda/gemm_hopper.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/quantize.h"

namespace foredraft::cuda {

// The experts are groups with consecutive ranges of grouped rows.
void GroupedGemm(Stream& stream, const GroupedGemmParams& p) {
  const int32_t rows = p.silu_f8 ? p.silu_f8.rows : p.out.rows;
  if (p.experts.count == 0 || rows == 0) return;
  auto& cuda = static_cast<CudaStream&>(stream);
  const PackedWeight& first = p.experts.first;
  CHECK_EQ(p.x.cols, first.k);
  const bool hopper = HopperSupports(first);
  const int32_t* row_count = p.expert_offsets + p.experts.count;
  GemmProblem problem = {.out = p.out,
                         .x = p.x,
                         .x_rows = p.x_rows,
                         .weight = first,
                         .data_stride = p.experts.data_stride,
                         .scale_stride = p.experts.scale_stride,
                         .ranges = {.offsets = p.expert_offsets, .rows = rows, .groups = p.experts.count}};
  if (first.dtype == DType::kF8E4M3) {
    const QuantizedShape shape(rows, first.k);
    if (p.x_f8 && p.x_rows == nullptr) {
      problem.x_f8 = p.x_f8;
    } else {
      problem.x_f8 = shape.View(cuda.Scratch(shape.bytes));
      if (p.x_f8) {
        CopyQuantizedRows(stream, problem.x_f8, p.x_f8, p.x_rows, row_count, rows);
      } else {
        QuantizeRows(stream, problem.x_f8, p.x, p.x_rows, row_count, rows);
      }
    }
    problem.x_rows = nullptr;
  } else if (hopper && (p.x_rows != nullptr || !TmaCanLoad(p.x, 0))) {
    void* const memory = cuda.Scratch(sizeof(bf16) * rows * first.k);
    const Matrix<bf16> grouped = Dense(static_cast<bf16*>(memory), rows, first.k);
    GatherRows(stream, grouped, p.x, p.x_rows, row_count, rows);
    problem.x = grouped;
    problem.x_rows = nullptr;
  }
  if (p.silu_f8) {
    GateUpGemm(stream, problem, p.silu_f8);
  } else if (hopper) {
    HopperGemm(stream, problem);
  } else {
    TileGemm(stream, problem);
  }
}

}  // namespace foredraft::cuda
