// FP8 blocks as DeepSeek stores them: X.weight in F8_E4M3 [n, k] and next to it a grid of multipliers,
// X.weight_scale_inv in F32, or DeepSeek-V4's X.scale in E8M0 (docs/deepseek-v4.md section 8).

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/formats/packed.h"
#include "engine/checkpoint/formats/stored_format.h"

namespace foredraft {
namespace {

constexpr float kLargest = 448;

// Files with NVFP4 may have other projections in FP8.
bool IsMeant(const ModelDescription& model, const TensorSpec& spec) {
  return (IsF8(model.projections) || model.projections == kNvfp4Format) && !spec.scale.empty();
}

const WeightFormat& FormatOf(const ModelDescription& model) {
  return IsF8(model.projections) ? model.projections : kFp8Format;
}

bool IsThere(const Checkpoint& checkpoint, const TensorSpec& spec) {
  const TensorEntry* const entry = checkpoint.Find(spec.name).entry;
  return entry != nullptr && entry->dtype == "F8_E4M3";
}

std::vector<StoredTensor> Tensors(const ModelDescription& model, const TensorSpec& spec) {
  const WeightFormat& format = FormatOf(model);
  return {{spec.name, "F8_E4M3", spec.shape},
          {spec.scale, DTypeName(format.scale), ScaleShape(format, spec.shape), StoredTensor::Part::kScales}};
}

absl::Status Check(const Checkpoint& checkpoint, const ModelDescription& model, const TensorSpec& spec) {
  return CheckCodesAndScales(checkpoint, spec, Tensors(model, spec));
}

absl::StatusOr<HostTensor> Read(const Checkpoint& checkpoint, const ModelDescription& model,
                                const TensorSpec& spec) {
  return ReadCodesAndScales(checkpoint.Find(spec.name), checkpoint.Find(spec.scale), FormatOf(model), spec);
}

// With F32 scales, codes fill E4M3's range. With scales that are powers of two, `spread` makes up for
// rounding the scale to a power of two.
RandomCodes Random(const WeightFormat& format, float amplitude) {
  if (format.scale == DType::kF32) {
    return {.spread = kLargest / kRandomBound, .scale = amplitude * kRandomBound / kLargest};
  }
  const int exponent = RandomExponent(amplitude, kLargest);
  return {.spread = std::ldexp(amplitude, -exponent), .exponent = exponent};
}

QuantizationError Round(const WeightFormat& format, const FloatBand& band, ThreadPool& pool, uint8_t* codes,
                        std::string& scales) {
  const bool e8m0 = format.scale == DType::kE8M0;
  const int64_t columns = format.scale_columns(band.k);
  std::vector<float> factors(format.scale_count(band.rows, band.k));
  const int64_t cost = int64_t{format.rows} * format.columns * 32;
  const QuantizationError error =
      SumErrors(pool, static_cast<int64_t>(factors.size()), cost, [&](int64_t block) {
        const int64_t row = block / columns * format.rows;
        const int64_t column = block % columns * format.columns;
        return QuantizeF8Block(&band.values[row * band.k + column], band.k,
                               static_cast<int>(std::min<int64_t>(format.rows, band.rows - row)),
                               static_cast<int>(std::min<int64_t>(format.columns, band.k - column)),
                               &codes[row * band.k + column], band.k, &factors[block], e8m0);
      });
  if (e8m0) {
    for (const float factor : factors) scales.push_back(static_cast<char>(127 + std::ilogb(factor)));
  } else {
    scales.append(reinterpret_cast<const char*>(factors.data()), factors.size() * sizeof(float));
  }
  return error;
}

}  // namespace

const StoredFormat kFp8Stored = {.is_meant = IsMeant,
                                 .is_there = IsThere,
                                 .tensors = Tensors,
                                 .check = Check,
                                 .read = Read,
                                 .random = Random,
                                 .round = Round,
                                 .weight_dtype = "F8_E4M3"};

}  // namespace foredraft
