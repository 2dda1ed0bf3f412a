#include "engine/checkpoint/pack_quantized.h"

#include <array>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

using Shape = std::vector<int64_t>;

std::string CodesName(const TensorSpec& spec) { return spec.name + "_packed"; }
std::string ScalesName(const TensorSpec& spec) { return spec.name + "_scale"; }
std::string ShapeName(const TensorSpec& spec) { return spec.name + "_shape"; }

bool IsInt4(const ModelConfig& config) { return config.pack_quantized.codes == CodeFormat::kInt4; }

absl::Status Refuse(const TensorLocation& tensor, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: tensor %s: %s", tensor.file->path(), tensor.entry->name, what));
}

// Finds a part of a packed module. `codes` is the part that is there.
absl::StatusOr<TensorLocation> FindPart(const Checkpoint& checkpoint, const std::string& name,
                                        const TensorLocation& codes) {
  const TensorLocation part = checkpoint.Find(name);
  if (part.entry != nullptr) return part;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: tensor %s: missing: %s is there", codes.file->path(), name, codes.entry->name));
}

absl::Status CheckDType(const TensorLocation& tensor, const std::string& allowed,
                        const std::string& other = "") {
  const std::string& dtype = tensor.entry->dtype;
  if (dtype == allowed || (!other.empty() && dtype == other)) return absl::OkStatus();
  return Refuse(
      tensor, absl::StrFormat("dtype: %s, allowed %s%s", dtype, allowed, other.empty() ? "" : ", " + other));
}

absl::Status CheckShape(const TensorLocation& tensor, const Shape& shape, const std::string& why) {
  if (tensor.entry->shape == shape) return absl::OkStatus();
  return Refuse(
      tensor, absl::StrFormat("shape: [%s], %s makes it [%s]", absl::StrJoin(tensor.entry->shape, ", "), why,
                              absl::StrJoin(shape, ", ")));
}

absl::Status CheckCodes(const TensorLocation& codes, const ModelConfig& config, const TensorSpec& spec) {
  const int64_t n = spec.shape[0];
  const int64_t k = spec.shape[1];
  const int group = config.pack_quantized.group;
  if (k % group != 0) {
    return Refuse(codes,
                  absl::StrFormat("columns: %d, allowed multiples of the group, %d: such a module has to "
                                  "stay unpacked",
                                  k, group));
  }
  RETURN_IF_ERROR(CheckDType(codes, IsInt4(config) ? "I32" : "U8"));
  if (IsInt4(config) && codes.entry->shape == Shape{n, k / 4}) {
    return Refuse(codes, absl::StrFormat("8 bits per code, allowed 4: shape [%d, %d]", n, k / 8));
  }
  return CheckShape(codes, {n, k / (IsInt4(config) ? 8 : 2)}, "config.json");
}

absl::Status CheckStoredShape(const Checkpoint& checkpoint, const TensorSpec& spec,
                              const TensorLocation& codes) {
  ASSIGN_OR_RETURN(const TensorLocation tensor, FindPart(checkpoint, ShapeName(spec), codes));
  RETURN_IF_ERROR(CheckDType(tensor, "I64"));
  RETURN_IF_ERROR(CheckShape(tensor, {2}, "the format"));
  Shape stored(2);
  RETURN_IF_ERROR(tensor.file->Read(*tensor.entry, 0, tensor.entry->bytes, stored.data()));
  if (stored == spec.shape) return absl::OkStatus();
  return Refuse(tensor, absl::StrFormat("[%s], config.json makes it [%s]", absl::StrJoin(stored, ", "),
                                        absl::StrJoin(spec.shape, ", ")));
}

// Parts that would change the meaning of codes and scales.
absl::Status CheckNoMore(const Checkpoint& checkpoint, const TensorSpec& spec) {
  const struct {
    const char* ending;
    const char* reason;
  } refused[] = {{"_zero_point", "zero points, allowed symmetric codes"},
                 {"_g_idx", "permuted columns, allowed groups of adjacent columns"},
                 {"_global_scale", "a scale of scales (NVFP4), allowed one scale per group"}};
  for (const auto& [ending, reason] : refused) {
    const TensorLocation tensor = checkpoint.Find(spec.name + ending);
    if (tensor.entry != nullptr) return Refuse(tensor, reason);
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const TensorLocation& tensor, const HostTensor& host) {
  const int64_t columns = host.k / host.group;
  for (size_t i = 0; i < host.group_scales.size(); ++i) {
    const float scale = ToFloat(host.group_scales[i]);
    if (std::isfinite(scale)) continue;
    return Refuse(
        tensor, absl::StrFormat("element [%d, %d]: %g, allowed finite scales",
                                static_cast<int64_t>(i) / columns, static_cast<int64_t>(i) % columns, scale));
  }
  return absl::OkStatus();
}

}  // namespace

DType PackedDType(const ModelConfig& config) {
  CHECK(config.pack_quantized);
  return IsInt4(config) ? DType::kInt4 : DType::kF4E2M1;
}

bool IsPacked(const Checkpoint& checkpoint, const ModelConfig& config, const TensorSpec& spec) {
  return config.pack_quantized && !spec.scale.empty() && checkpoint.Find(CodesName(spec)).entry != nullptr;
}

std::vector<std::string> PackedNames(const ModelConfig& config, const TensorSpec& spec) {
  std::vector<std::string> names = {CodesName(spec), ScalesName(spec)};
  if (IsInt4(config)) names.push_back(ShapeName(spec));
  return names;
}

absl::Status CheckPacked(const Checkpoint& checkpoint, const ModelConfig& config, const TensorSpec& spec) {
  const TensorLocation codes = checkpoint.Find(CodesName(spec));
  const TensorLocation plain = checkpoint.Find(spec.name);
  if (plain.entry != nullptr) return Refuse(plain, "given twice: " + CodesName(spec) + " is there too");
  RETURN_IF_ERROR(CheckNoMore(checkpoint, spec));
  RETURN_IF_ERROR(CheckCodes(codes, config, spec));
  ASSIGN_OR_RETURN(const TensorLocation scales, FindPart(checkpoint, ScalesName(spec), codes));
  RETURN_IF_ERROR(IsInt4(config) ? CheckDType(scales, "BF16") : CheckDType(scales, "U8", "F8_E8M0"));
  const int group = config.pack_quantized.group;
  RETURN_IF_ERROR(
      CheckShape(scales, {spec.shape[0], spec.shape[1] / group}, absl::StrFormat("a group of %d", group)));
  return IsInt4(config) ? CheckStoredShape(checkpoint, spec, codes) : absl::OkStatus();
}

absl::Status CheckUnpacked(const Checkpoint& checkpoint, const TensorSpec& spec) {
  RETURN_IF_ERROR(CheckNoMore(checkpoint, spec));
  for (const std::string& name : {CodesName(spec), ScalesName(spec), ShapeName(spec)}) {
    const TensorLocation part = checkpoint.Find(name);
    if (part.entry != nullptr) return Refuse(part, "unexpected: " + spec.name + " is not packed");
  }
  return absl::OkStatus();
}

absl::StatusOr<HostTensor> ReadPacked(const Checkpoint& checkpoint, const ModelConfig& config,
                                      const TensorSpec& spec) {
  const TensorLocation codes = checkpoint.Find(CodesName(spec));
  const TensorLocation scales = checkpoint.Find(ScalesName(spec));
  CHECK(codes.entry != nullptr && scales.entry != nullptr) << spec.name;
  HostTensor tensor;
  tensor.dtype = PackedDType(config);
  tensor.n = static_cast<int32_t>(spec.shape[0]);
  tensor.k = static_cast<int32_t>(spec.shape[1]);
  tensor.group = config.pack_quantized.group;
  tensor.data = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(codes.entry->bytes));
  RETURN_IF_ERROR(codes.file->Read(*codes.entry, 0, codes.entry->bytes, tensor.data.get()));
  tensor.group_scales.resize(int64_t{tensor.n} * (tensor.k / tensor.group));
  if (IsInt4(config)) {
    RETURN_IF_ERROR(scales.file->Read(*scales.entry, 0, scales.entry->bytes, tensor.group_scales.data()));
  } else {
    std::vector<uint8_t> exponents(tensor.group_scales.size());
    RETURN_IF_ERROR(scales.file->Read(*scales.entry, 0, scales.entry->bytes, exponents.data()));
    for (size_t i = 0; i < exponents.size(); ++i) tensor.group_scales[i] = E8M0ToBf16(exponents[i]);
    RETURN_IF_ERROR(CheckFinite(scales, tensor));  // stored as U8, they are integers to the reader
  }
  return tensor;
}

int64_t PackedBytes(const Checkpoint& checkpoint, const TensorSpec& spec) {
  return checkpoint.Find(CodesName(spec)).entry->bytes + checkpoint.Find(ScalesName(spec)).entry->bytes;
}

}  // namespace foredraft
