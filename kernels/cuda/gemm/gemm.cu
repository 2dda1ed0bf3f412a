#include "base/check.h"
#include "kernels/cuda/dense/quantize.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/gemm/cublaslt_gemm.h"
#include "kernels/cuda/gemm/gemm_gather.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "kernels/cuda/gemm/weight_kind.h"

namespace foredraft::cuda {
namespace {

// The memory in which BF16 rows are prepared for the kernel: quantised, or copied to where TMA can load them.
int64_t PreparedBytes(const GemmParams& p) {
  if (IsF8(p.weight.format)) return p.x_f8 ? 0 : QuantizedShape(p.x.rows, p.x.cols).bytes;
  if (!HopperSupports(p.weight) || TmaCanLoad(p.x, 0)) return 0;
  return int64_t{p.x.rows} * p.x.cols * static_cast<int64_t>(sizeof(bf16));
}

void Prepare(Stream& stream, const GemmParams& p, void* memory, GemmProblem& problem) {
  if (IsF8(p.weight.format)) {
    problem.x_f8 = QuantizedShape(p.x.rows, p.x.cols).View(memory);
    QuantizeRows(stream, problem.x_f8, p.x, nullptr, nullptr, p.x.rows);
  } else {
    const Matrix<bf16> copy = Dense(static_cast<bf16*>(memory), p.x.rows, p.x.cols);
    GatherRows(stream, copy, p.x, nullptr, nullptr, p.x.rows);
    problem.x = copy;
  }
}

bool IsTuned(const CudaStream& stream, const GemmParams& p) {
  return stream.tuned_gemms() != nullptr && stream.tuned_gemms()->Supports(p);
}

// Computes the product by the project's kernels; with rotated.out, HopperGemm stores it there, rotated.
void Multiply(CudaStream& stream, const GemmParams& p, const RopeQueryParams& rotated) {
  GemmProblem problem = {.out = p.out,
                         .out_bf16 = p.out_bf16,
                         .x = p.x,
                         .x_f8 = p.x_f8,
                         .bias = p.bias,
                         .weight = p.weight,
                         .ranges = {.offsets = nullptr, .rows = p.x.rows, .groups = 1},
                         .rotated = rotated};
  const WeightKind& kind = KindOf(p.weight.format);
  problem.splits = p.form == GemmForm::kDecode ? kind.splits(stream, problem) : 1;
  const int64_t prepared_bytes = (PreparedBytes(p) + 1023) / 1024 * 1024;
  const int64_t partial_bytes = kind.partial_bytes(stream, problem);
  if (prepared_bytes + partial_bytes > 0) {
    auto* const memory = static_cast<std::byte*>(stream.Scratch(prepared_bytes + partial_bytes));
    problem.partials = memory + prepared_bytes;
    if (prepared_bytes > 0) Prepare(stream, p, memory, problem);
  }
  kind.product(stream, problem);
}

// Whether pairs of outputs lie in one head's rotated or other part, and can be loaded and stored together.
bool StoresPairs(const RopeQueryParams& p) {
  return p.head_dim % 2 == 0 && p.rope_dim % 2 == 0 && reinterpret_cast<uintptr_t>(p.out.data) % 4 == 0 &&
         p.out.stride % 2 == 0 && reinterpret_cast<uintptr_t>(p.cos_sin) % sizeof(float2) == 0;
}

}  // namespace

// One group, whose row count the host knows. With FP8 weights, BF16 rows are quantised first. The kernel:
//
// clang-format off
//   weight                                  | no tuning file | tuning file has the shape and form
//   FP8 or BF16, rows a multiple of 128 B   | HopperGemm     | cuBLASLt, the entry's algorithm
//   INT4 or FP4                             | Gemm4Bit       | Gemm4Bit
//   any other                               | TileGemm       | TileGemm
// clang-format on
//
// The whole weight's shape and the form alone decide, because in the decode form HopperGemm and Gemm4Bit may
// split k (GemmSplits, Splits4Bit). head_gemm and grouped_gemm choose by the same rule and split nothing. A
// weight with segments never uses cuBLASLt; for HopperGemm its segments must be multiples of 128 bytes.
// Without a tuning file cuBLASLt is not used: only `foredraft tune` checks that an algorithm gives a row the
// same bits for all row counts.
void Gemm(Stream& stream, const GemmParams& p) {
  CHECK_EQ(p.x.cols, p.weight.k);
  auto& cuda = static_cast<CudaStream&>(stream);
  if (IsTuned(cuda, p)) {
    cuda.tuned_gemms()->Run(cuda, p);
  } else {
    Multiply(cuda, p, {});
  }
}

// HopperGemm rotates its outputs before it stores them; after any other kernel, RopeQuery does.
void QueryGemm(Stream& stream, const QueryGemmParams& p) {
  CHECK_EQ(p.gemm.weight.n, p.rope.head_count * p.rope.head_dim);
  auto& cuda = static_cast<CudaStream&>(stream);
  if (!IsTuned(cuda, p.gemm) && HopperSupports(p.gemm.weight) && StoresPairs(p.rope)) {
    return Multiply(cuda, p.gemm, p.rope);
  }
  Gemm(stream, p.gemm);
  RopeQuery(stream, p.rope);
}

}  // namespace foredraft::cuda
