#include "base/check.h"
#include "kernels/cuda/dense/quantize.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/gemm/gemm_gate_up.h"
#include "kernels/cuda/gemm/gemm_gather.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/gemm/weight_kind.h"

namespace foredraft::cuda {
namespace {

constexpr int64_t kMostSums = int64_t{8} << 20;  // bytes of gate and up that may be kept between two kernels

int64_t RoundUp(int64_t bytes) { return (bytes + 1023) / 1024 * 1024; }

// GateUpGemm's result by two kernels, for very few rows: GateUpGemm would have too few tiles for the device.
// The bits are the same.
void GateUpInParts(Stream& stream, GemmProblem problem, const GroupedGemmParams& p, float* sums) {
  problem.out = Dense(sums, p.silu_f8.rows, problem.weight.n);
  HopperGemm(stream, problem);
  SiluMul(stream, {.out_f8 = p.silu_f8,
                   .gate_up = problem.out,
                   .row_count = p.expert_offsets + p.experts.count,
                   .limit = p.silu_limit});
}

// Prepares the rows of x for the kernel, if it cannot read them as they are.
class RowsForKernel {
 public:
  RowsForKernel(const GroupedGemmParams& p, int32_t rows)
      : p_(p),
        shape_(rows, p.experts.first.k),
        f8_(IsF8(p.experts.first.format)),
        needed_(f8_ ? !p.x_f8 || p.x_rows != nullptr
                    : HopperSupports(p.experts.first) && (p.x_rows != nullptr || !TmaCanLoad(p.x, 0))) {}

  int64_t bytes() const {
    if (!needed_) return 0;
    return f8_ ? shape_.bytes : int64_t{shape_.rows} * shape_.k * static_cast<int64_t>(sizeof(bf16));
  }

  // `memory`: bytes().
  void Fill(Stream& stream, void* memory, GemmProblem& problem) const {
    const int32_t* const row_count = p_.expert_offsets + p_.experts.count;
    if (f8_) problem.x_rows = nullptr;
    if (!needed_) {
      problem.x_f8 = p_.x_f8;
    } else if (!f8_) {
      const Matrix<bf16> grouped = Dense(static_cast<bf16*>(memory), shape_.rows, shape_.k);
      GatherRows(stream, grouped, p_.x, p_.x_rows, row_count, shape_.rows);
      problem.x = grouped;
      problem.x_rows = nullptr;
    } else {
      problem.x_f8 = shape_.View(memory);
      if (p_.x_f8) {
        CopyQuantizedRows(stream, problem.x_f8, p_.x_f8, p_.x_rows, row_count, shape_.rows);
      } else {
        QuantizeRows(stream, problem.x_f8, p_.x, p_.x_rows, row_count, shape_.rows);
      }
    }
  }

 private:
  const GroupedGemmParams& p_;
  const QuantizedShape shape_;
  const bool f8_;
  const bool needed_;
};

}  // namespace

// The experts are groups with consecutive ranges of grouped rows.
void GroupedGemm(Stream& stream, const GroupedGemmParams& p) {
  const int32_t rows = p.silu_f8 ? p.silu_f8.rows : p.out.rows;
  if (p.experts.count == 0 || rows == 0) return;
  const PackedWeight& first = p.experts.first;
  CHECK_EQ(p.x.cols, first.k);
  CHECK(p.x_rows != nullptr || p.x_f8.scale_stride == 1);
  GemmProblem problem = {.out = p.out,
                         .x = p.x,
                         .x_rows = p.x_rows,
                         .weight = first,
                         .data_stride = p.experts.data_stride,
                         .scale_stride = p.experts.scale_stride,
                         .ranges = {.offsets = p.expert_offsets, .rows = rows, .groups = p.experts.count},
                         .expected_rows = p.expected_rows};
  const RowsForKernel rows_for_kernel(p, rows);
  const int64_t sums_at = RoundUp(rows_for_kernel.bytes());
  const int64_t sum_bytes = int64_t{rows} * first.n * static_cast<int64_t>(sizeof(float));
  const bool in_parts =
      p.silu_f8 && sum_bytes <= kMostSums && !GateUpIsFaster(SizeOf(problem), RatesOf(stream));
  const int64_t bytes = sums_at + (in_parts ? sum_bytes : 0);
  auto* const memory =
      bytes > 0 ? static_cast<std::byte*>(static_cast<CudaStream&>(stream).Scratch(bytes)) : nullptr;
  rows_for_kernel.Fill(stream, memory, problem);
  if (in_parts) {
    GateUpInParts(stream, problem, p, reinterpret_cast<float*>(memory + sums_at));
  } else if (p.silu_f8) {
    GateUpGemm(stream, problem, p.silu_f8, p.silu_limit);
  } else {
    KindOf(first.format).product(stream, problem);
  }
}

}  // namespace foredraft::cuda
