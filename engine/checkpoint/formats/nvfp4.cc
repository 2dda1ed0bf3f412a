// NVFP4: E2M1 codes, two to a byte, element 0 in the low nibble; a scale in E4M3 for each 16 columns, row by
// row; an FP32 scale of the tensor. Two spellings, instead of X.weight [n, k]:
//
//   modelopt               X.weight U8 [n, k / 2], X.weight_scale F8_E4M3 [n, k / 16],
//                          X.weight_scale_2 F32 [], which multiplies; X.input_scale F32 []
//   nvfp4-pack-quantized   X.weight_packed U8 [n, k / 2], X.weight_scale likewise,
//                          X.weight_global_scale F32 [1], which divides; X.input_global_scale F32 [1]
//
// The tensors decide which modules are NVFP4, and in which spelling. Scales of inputs are used only where
// experts' inputs are rounded (moe.inputs); elsewhere they are only checked: one that is not positive shows a
// broken file.

#include <cmath>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/formats/packed.h"
#include "engine/checkpoint/formats/stored_format.h"
#include "kernels/rules/nvfp4_rows.h"

namespace foredraft {
namespace {

// The tensors of a module in one spelling.
struct Names {
  std::string codes, scales, tensor_scale, input_scale;
  bool divides;  // codes are divided by the tensor scale, not multiplied
};

// "X." of a weight "X.weight".
std::string ModuleOf(const TensorSpec& spec) {
  const std::string name = spec.name;
  return name.substr(0, name.size() - std::string_view("weight").size());
}

Names ModeloptNames(const TensorSpec& spec) {
  return {spec.name, spec.name + "_scale", spec.name + "_scale_2", ModuleOf(spec) + "input_scale", false};
}

Names PackedNames(const TensorSpec& spec) {
  return {spec.name + "_packed", spec.name + "_scale", spec.name + "_global_scale",
          ModuleOf(spec) + "input_global_scale", true};
}

bool IsMeant(const ModelDescription& model, const TensorSpec& spec) {
  const bool projection = model.projections == kNvfp4Format && !spec.scale.empty();
  return (projection || spec.format == kNvfp4Format) && spec.name.ends_with(".weight");
}

bool IsModeloptThere(const Checkpoint& checkpoint, const TensorSpec& spec) {
  const TensorEntry* const entry = checkpoint.Find(spec.name).entry;
  return entry != nullptr && entry->dtype == "U8";
}

// ---- what this program writes: modelopt's spelling ----

RandomCodes Random(const WeightFormat& format, float) {
  // Scales lie around 1; the tensor scale carries the magnitude.
  const float largest = Code4ToFloat(format.code, 7);
  return {.spread = largest / kRandomBound, .scale = 1};
}

std::vector<StoredTensor> TensorsOf(const Names& names, const TensorSpec& spec, float tensor_scale) {
  using Part = StoredTensor::Part;
  return {{names.codes, "U8", {spec.shape[0], spec.shape[1] / 2}},
          {names.scales, "F8_E4M3", ScaleShape(kNvfp4Format, spec.shape), Part::kScales},
          {names.tensor_scale, "F32", {}, Part::kTensorScale, "", tensor_scale}};
}

std::vector<StoredTensor> ModeloptTensors(const ModelDescription& model, const TensorSpec& spec) {
  const float spread = Random(kNvfp4Format, 1).spread;
  return TensorsOf(ModeloptNames(spec), spec, RandomAmplitude(spec, model) / spread);
}

std::vector<StoredTensor> PackedTensors(const ModelDescription&, const TensorSpec& spec) {
  return TensorsOf(PackedNames(spec), spec, 1);
}

float TensorScale(float largest) {
  const float scale = largest / (6 * 448);
  return scale > 0 ? scale : 1.0f;
}

QuantizationError Round(const WeightFormat& format, const FloatBand& band, ThreadPool& pool, uint8_t* codes,
                        std::string& scales) {
  const int group = format.columns;
  return RoundGroups<uint8_t>(format, band, pool, scales, [&](int64_t i, uint8_t* scale) {
    return QuantizeNvfp4Group(&band.values[i * group], band.tensor_scale, &codes[i * group / 2], scale);
  });
}

// ---- check ----

absl::Status CheckScalar(const TensorLocation& tensor) {
  RETURN_IF_ERROR(CheckStoredDType(tensor, "F32"));
  if (tensor.entry->shape.empty()) return absl::OkStatus();
  return CheckStoredShape(tensor, {1}, "a scale of the tensor");
}

// Refuses tensors that give the codes another meaning, or that belong to another spelling.
absl::Status CheckNoMore(const Checkpoint& checkpoint, const Names& names, const TensorSpec& spec) {
  const struct {
    std::string name;
    const char* reason;
  } refused[] = {
      {spec.name + "_zero_point", "zero points, allowed symmetric codes"},
      {spec.name + "_g_idx", "permuted columns, allowed groups of adjacent columns"},
      {spec.name + "_shape", "unexpected: NVFP4 has no such tensor"},
      {ModuleOf(spec) + "pre_quant_scale", "scales of input columns, allowed weights without them"},
      {spec.name + (names.divides ? "" : "_packed"), "given twice: two spellings of NVFP4"},
      {spec.name + (names.divides ? "_scale_2" : "_global_scale"), "given twice: two spellings of NVFP4"}};
  for (const auto& [name, reason] : refused) {
    const TensorLocation tensor = checkpoint.Find(name);
    if (tensor.entry != nullptr) return RefuseTensor(tensor, reason);
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorLocation> FindNamed(const Checkpoint& checkpoint, const std::string& name,
                                         const TensorLocation& codes) {
  const TensorLocation found = checkpoint.Find(name);
  if (found.entry != nullptr) return found;
  return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: missing: %s is there in U8",
                                                    codes.file->path(), name, codes.entry->name));
}

absl::Status CheckNames(const Checkpoint& checkpoint, const Names& names, const TensorSpec& spec) {
  const TensorLocation codes = checkpoint.Find(names.codes);
  const int64_t k = spec.shape[1];
  RETURN_IF_ERROR(CheckNoMore(checkpoint, names, spec));
  RETURN_IF_ERROR(CheckStoredDType(codes, "U8"));
  if (k % kNvfp4Format.columns != 0) {
    return RefuseTensor(codes, absl::StrFormat("columns: %d, allowed multiples of the group, %d: such a "
                                               "module has to stay unpacked",
                                               k, kNvfp4Format.columns));
  }
  RETURN_IF_ERROR(CheckStoredShape(codes, {spec.shape[0], k / 2}));
  ASSIGN_OR_RETURN(const TensorLocation scales, FindNamed(checkpoint, names.scales, codes));
  if (scales.entry->dtype == "U8" && scales.entry->shape.size() == 1) {
    return RefuseTensor(scales, absl::StrFormat("swizzled scales of a TensorRT-LLM file, allowed F8_E4M3 "
                                                "[%d, %d], row by row",
                                                spec.shape[0], k / kNvfp4Format.columns));
  }
  RETURN_IF_ERROR(CheckStoredDType(scales, "F8_E4M3"));
  RETURN_IF_ERROR(CheckStoredShape(scales, ScaleShape(kNvfp4Format, spec.shape),
                                   absl::StrFormat("a group of %d", kNvfp4Format.columns)));
  ASSIGN_OR_RETURN(const TensorLocation tensor_scale, FindNamed(checkpoint, names.tensor_scale, codes));
  RETURN_IF_ERROR(CheckScalar(tensor_scale));
  const TensorLocation input = checkpoint.Find(names.input_scale);
  return input.entry == nullptr ? absl::OkStatus() : CheckScalar(input);
}

// ---- read ----

absl::StatusOr<float> ReadPositive(const TensorLocation& tensor) {
  float value = 0;
  RETURN_IF_ERROR(tensor.file->Read(*tensor.entry, 0, sizeof(value), &value));
  if (value > 0 && std::isfinite(1 / value)) return value;
  return RefuseTensor(tensor, absl::StrFormat("%g, allowed positive numbers", value));
}

absl::StatusOr<HostTensor> ReadNames(const Checkpoint& checkpoint, const Names& names,
                                     const TensorSpec& spec) {
  const TensorLocation scales = checkpoint.Find(names.scales);
  ASSIGN_OR_RETURN(HostTensor tensor,
                   ReadCodesAndScales(checkpoint.Find(names.codes), scales, kNvfp4Format, spec));
  for (size_t i = 0; i < tensor.scales.size(); ++i) {
    if (static_cast<uint8_t>(tensor.scales[i]) < 0x80) continue;
    const auto columns = static_cast<size_t>(scales.entry->shape[1]);
    return RefuseTensor(scales,
                        absl::StrFormat("element [%d, %d]: %g, allowed scales without a sign", i / columns,
                                        i % columns, F8E4M3ToFloat(static_cast<uint8_t>(tensor.scales[i]))));
  }
  ASSIGN_OR_RETURN(const float scale, ReadPositive(checkpoint.Find(names.tensor_scale)));
  tensor.tensor_scale = names.divides ? 1 / scale : scale;
  const TensorLocation input = checkpoint.Find(names.input_scale);
  if (input.entry != nullptr) RETURN_IF_ERROR(ReadPositive(input).status());
  return tensor;
}

absl::StatusOr<float> ReadInputScale(const Checkpoint& checkpoint, const Names& names) {
  const TensorLocation codes = checkpoint.Find(names.codes), input = checkpoint.Find(names.input_scale);
  if (input.entry == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: tensor %s: missing, needed with moe.inputs: nvfp4; auto needs no scales of inputs",
        codes.file->path(), names.input_scale));
  }
  ASSIGN_OR_RETURN(const float stored, ReadPositive(input));
  const float scale = names.divides ? 1 / stored : stored;
  if (scale >= kSmallestInputScale && scale <= kLargestInputScale) return scale;
  return RefuseTensor(input, absl::StrFormat("%g, allowed %g..%g with moe.inputs: nvfp4", stored,
                                             kSmallestInputScale, kLargestInputScale));
}

absl::Status CheckModelopt(const Checkpoint& checkpoint, const ModelDescription&, const TensorSpec& spec) {
  return CheckNames(checkpoint, ModeloptNames(spec), spec);
}
absl::StatusOr<HostTensor> ReadModelopt(const Checkpoint& checkpoint, const ModelDescription&,
                                        const TensorSpec& spec) {
  return ReadNames(checkpoint, ModeloptNames(spec), spec);
}
absl::Status CheckPacked(const Checkpoint& checkpoint, const ModelDescription&, const TensorSpec& spec) {
  const TensorLocation plain = checkpoint.Find(spec.name);
  if (plain.entry != nullptr)
    return RefuseTensor(plain, "given twice: " + spec.name + "_packed is there too");
  return CheckNames(checkpoint, PackedNames(spec), spec);
}
absl::StatusOr<HostTensor> ReadNvfp4Packed(const Checkpoint& checkpoint, const ModelDescription&,
                                           const TensorSpec& spec) {
  return ReadNames(checkpoint, PackedNames(spec), spec);
}

}  // namespace

const StoredFormat kNvfp4Stored = {
    .is_meant = IsMeant,
    .is_there = IsModeloptThere,
    .tensors = ModeloptTensors,
    .check = CheckModelopt,
    .read = ReadModelopt,
    .random = Random,
    .round = Round,
    .tensor_scale = TensorScale,
    .input_scale_name = [](const TensorSpec& spec) { return ModeloptNames(spec).input_scale; },
    .input_scale = [](const Checkpoint& checkpoint,
                      const TensorSpec& spec) { return ReadInputScale(checkpoint, ModeloptNames(spec)); },
    .weight_dtype = "U8 (NVFP4)"};
const StoredFormat kNvfp4PackedStored = {
    .is_meant = IsMeant,
    .is_there = HasPackedCodes,
    .tensors = PackedTensors,
    .check = CheckPacked,
    .read = ReadNvfp4Packed,
    .random = Random,
    .input_scale_name = [](const TensorSpec& spec) { return PackedNames(spec).input_scale; },
    .input_scale = [](const Checkpoint& checkpoint,
                      const TensorSpec& spec) { return ReadInputScale(checkpoint, PackedNames(spec)); }};

}  // namespace foredraft
