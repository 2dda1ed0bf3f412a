// compressed-tensors' pack-quantized. Instead of X.weight [n, k]:
//
//   X.weight_packed   I32 [n, k / 8]        code 0 in the low nibble; a code is the value plus 8
//   X.weight_scale    BF16 [n, k / group]
//   X.weight_shape    I64 [2] = n, k

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/checkpoint/formats/packed.h"
#include "engine/checkpoint/formats/stored_format.h"

namespace foredraft {
namespace {

bool IsMeant(const ModelDescription& model, const TensorSpec& spec) {
  return model.projections.code == DType::kInt4 && !spec.scale.empty();
}

std::vector<StoredTensor> Tensors(const ModelDescription& model, const TensorSpec& spec) {
  using Part = StoredTensor::Part;
  const int64_t n = spec.shape[0], k = spec.shape[1];
  const std::string shape(reinterpret_cast<const char*>(spec.shape.data()), 2 * sizeof(int64_t));
  return {{spec.name + "_packed", "I32", {n, k / 8}},
          {spec.name + "_scale", "BF16", ScaleShape(model.projections, spec.shape), Part::kScales},
          {spec.name + "_shape", "I64", {2}, Part::kConstant, shape}};
}

absl::Status CheckShapeTensor(const Checkpoint& checkpoint, const StoredTensor& shape,
                              const TensorSpec& spec) {
  ASSIGN_OR_RETURN(const TensorLocation tensor, FindPart(checkpoint, shape.name, spec));
  RETURN_IF_ERROR(CheckStoredDType(tensor, shape.dtype));
  RETURN_IF_ERROR(CheckStoredShape(tensor, shape.shape, "the format"));
  std::vector<int64_t> stored(2);
  RETURN_IF_ERROR(tensor.file->Read(*tensor.entry, 0, tensor.entry->bytes, stored.data()));
  if (stored == spec.shape) return absl::OkStatus();
  return RefuseTensor(tensor, absl::StrFormat("[%s], config.json makes it [%s]", absl::StrJoin(stored, ", "),
                                              absl::StrJoin(spec.shape, ", ")));
}

absl::Status Check(const Checkpoint& checkpoint, const ModelDescription& model, const TensorSpec& spec) {
  const std::vector<StoredTensor> tensors = Tensors(model, spec);
  const int64_t n = spec.shape[0], k = spec.shape[1];
  const TensorLocation codes = checkpoint.Find(tensors[0].name);
  const bool is_int8 = codes.entry->dtype == "I32" && codes.entry->shape == std::vector<int64_t>{n, k / 4};
  RETURN_IF_ERROR(CheckPackedCodes(checkpoint, model.projections, spec, is_int8 ? nullptr : &tensors[0]));
  if (is_int8) {
    return RefuseTensor(codes, absl::StrFormat("8 bits per code, allowed 4: shape [%d, %d]", n, k / 8));
  }
  RETURN_IF_ERROR(CheckPackedScales(checkpoint, model.projections, spec, {"BF16"}));
  return CheckShapeTensor(checkpoint, tensors[2], spec);
}

RandomCodes Random(const WeightFormat&, float amplitude) {
  const float scale = amplitude * kRandomBound / Code4ToFloat(DType::kInt4, 15);
  return {.spread = amplitude / scale, .scale = scale};
}

QuantizationError Round(const WeightFormat& format, const FloatBand& band, ThreadPool& pool, uint8_t* codes,
                        std::string& scales) {
  const int group = format.columns;
  return RoundGroups<bf16>(format, band, pool, scales, [&](int64_t i, bf16* scale) {
    return QuantizeInt4Group(&band.values[i * group], group, &codes[i * group / 2], scale);
  });
}

}  // namespace

const StoredFormat kInt4Stored = {.is_meant = IsMeant,
                                  .is_there = HasPackedCodes,
                                  .tensors = Tensors,
                                  .check = Check,
                                  .read = ReadPacked,
                                  .random = Random,
                                  .round = Round};

}  // namespace foredraft
