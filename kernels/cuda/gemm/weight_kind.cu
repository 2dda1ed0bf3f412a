#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "kernels/cuda/gemm/gemm_4bit.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "kernels/cuda/gemm/random_weight.h"
#include "kernels/cuda/gemm/weight_kind.h"

namespace foredraft::cuda {
namespace {

int32_t SplitsOfElements(Stream& stream, const GemmProblem& q) {
  const PackedWeight& weight = q.weight;
  if (!HopperSupports(weight)) return 1;
  if (weight.segments > 0) return SegmentShares(SizeOf(q), RatesOf(stream));
  return GemmSplits(weight.plan_n(), weight.plan_k(), static_cast<int32_t>(DTypeBytes(weight.format.code)));
}

int32_t SplitsOf4Bit(Stream& stream, const GemmProblem& q) {
  const PackedWeight& weight = q.weight;
  if (weight.segments > 0) return SegmentShares(SizeOf(q), RatesOf(stream));
  return Splits4Bit(weight.plan_n(), weight.plan_k(), weight.format);
}

// Both kernels give the same bits for BF16, so the alignment of x may choose between them.
void MultiplyElements(Stream& stream, const GemmProblem& problem) {
  const bool loads = problem.x_f8 || TmaCanLoad(problem.x, problem.x_group_stride);
  loads&& HopperSupports(problem.weight) ? HopperGemm(stream, problem) : TileGemm(stream, problem);
}

constexpr WeightKind kKinds[] = {
    {.has = [](const WeightFormat& format) { return format.code == DType::kBF16 || IsF8(format); },
     .upload = UploadElements,
     .fill_random = FillRandomElements,
     .splits = SplitsOfElements,
     .partial_bytes = [](Stream& stream, const GemmProblem& q) { return HopperPartialBytes(stream, q); },
     .product = MultiplyElements},
    {.has = Is4BitLayout,
     .upload = Upload4Bit,
     .fill_random = FillRandom4Bit,
     .splits = SplitsOf4Bit,
     .partial_bytes = [](Stream& stream, const GemmProblem& q) { return PartialBytes4Bit(stream, q); },
     .product = [](Stream& stream, const GemmProblem& q) { Gemm4Bit(stream, q); }},
};

}  // namespace

const WeightKind& KindOf(const WeightFormat& format) {
  const auto* const kind =
      std::ranges::find_if(kKinds, [&](const WeightKind& row) { return row.has(format); });
  CHECK(kind != std::end(kKinds)) << "no kernel for " << DTypeName(format.code);
  return *kind;
}

}  // namespace foredraft::cuda
