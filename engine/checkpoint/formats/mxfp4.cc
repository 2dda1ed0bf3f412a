// E2M1 codes, two to a byte, element 0 in the low nibble, with an E8M0 scale for each 32 columns: 2^(byte -
// 127). Two spellings, instead of X.weight [n, k]:
//
//   mxfp4-pack-quantized     X.weight_packed U8 [n, k / 2], X.weight_scale U8 or F8_E8M0 [n, k / 32]
//   DeepSeek-V4's experts    X.weight I8 [n, k / 2], X.scale F8_E8M0 [n, k / 32] (docs/deepseek-v4.md section
//                            8), where the other projections are FP8 blocks

#include <cmath>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/formats/packed.h"
#include "engine/checkpoint/formats/stored_format.h"

namespace foredraft {
namespace {

std::vector<int64_t> CodeShape(const TensorSpec& spec) { return {spec.shape[0], spec.shape[1] / 2}; }

RandomCodes Random(const WeightFormat& format, float amplitude) {
  const int exponent = RandomExponent(amplitude, Code4ToFloat(format.code, 7));
  return {.spread = std::ldexp(amplitude, -exponent), .exponent = exponent};
}

// ---- mxfp4-pack-quantized ----

bool IsPackedMeant(const ModelDescription& model, const TensorSpec& spec) {
  return model.projections == kMxfp4Format && !spec.scale.empty();
}

std::vector<StoredTensor> PackedTensors(const ModelDescription& model, const TensorSpec& spec) {
  return {
      {spec.name + "_packed", "U8", CodeShape(spec)},
      {spec.name + "_scale", "U8", ScaleShape(model.projections, spec.shape), StoredTensor::Part::kScales}};
}

absl::Status CheckMxfp4Packed(const Checkpoint& checkpoint, const ModelDescription& model,
                              const TensorSpec& spec) {
  const StoredTensor codes = PackedTensors(model, spec).front();
  RETURN_IF_ERROR(CheckPackedCodes(checkpoint, model.projections, spec, &codes));
  return CheckPackedScales(checkpoint, model.projections, spec, {"U8", "F8_E8M0"});
}

// ---- next to FP8 blocks: also in files whose other experts are NVFP4 ----

bool IsBesideMeant(const ModelDescription& model, const TensorSpec& spec) {
  return IsF8(model.projections) && spec.format.code == DType::kF4E2M1;
}

bool IsBesideThere(const Checkpoint& checkpoint, const TensorSpec& spec) {
  const TensorEntry* const entry = checkpoint.Find(spec.name).entry;
  return entry != nullptr && entry->dtype == "I8";
}

std::vector<StoredTensor> BesideTensors(const ModelDescription&, const TensorSpec& spec) {
  return {{spec.name, "I8", CodeShape(spec)},
          {spec.scale, "F8_E8M0", ScaleShape(kMxfp4Format, spec.shape), StoredTensor::Part::kScales}};
}

absl::Status CheckBeside(const Checkpoint& checkpoint, const ModelDescription& model,
                         const TensorSpec& spec) {
  return CheckCodesAndScales(checkpoint, spec, BesideTensors(model, spec));
}

absl::StatusOr<HostTensor> ReadBeside(const Checkpoint& checkpoint, const ModelDescription&,
                                      const TensorSpec& spec) {
  return ReadCodesAndScales(checkpoint.Find(spec.name), checkpoint.Find(spec.scale), kMxfp4Format, spec);
}

}  // namespace

const StoredFormat kMxfp4PackedStored = {.is_meant = IsPackedMeant,
                                         .is_there = HasPackedCodes,
                                         .tensors = PackedTensors,
                                         .check = CheckMxfp4Packed,
                                         .read = ReadPacked,
                                         .random = Random};
const StoredFormat kMxfp4BesideStored = {.is_meant = IsBesideMeant,
                                         .is_there = IsBesideThere,
                                         .tensors = BesideTensors,
                                         .check = CheckBeside,
                                         .read = ReadBeside,
                                         .random = Random};

}  // namespace foredraft
