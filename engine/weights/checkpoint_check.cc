#include "engine/weights/checkpoint_check.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/weights/pack_quantized.h"

namespace foredraft {
namespace {

absl::Status Refuse(const std::string& file, const std::string& tensor, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: %s", file, tensor, what));
}

absl::Status CheckShape(const TensorLocation& found, const std::vector<int64_t>& shape) {
  if (found.entry->shape == shape) return absl::OkStatus();
  return Refuse(found.file->path(), found.entry->name,
                absl::StrFormat("shape: [%s], config.json makes it [%s]",
                                absl::StrJoin(found.entry->shape, ", "), absl::StrJoin(shape, ", ")));
}

absl::Status CheckDType(const TensorLocation& found, bool f8_allowed) {
  const std::string& dtype = found.entry->dtype;
  if (dtype == "BF16" || dtype == "F32" || (f8_allowed && dtype == "F8_E4M3")) return absl::OkStatus();
  return Refuse(found.file->path(), found.entry->name,
                absl::StrFormat("dtype: %s, allowed BF16, F32%s", dtype, f8_allowed ? ", F8_E4M3" : ""));
}

// Checks that an FP8 weight has F32 scales and that any other weight has no scales.
absl::Status CheckScale(const Checkpoint& checkpoint, const ModelConfig& config, const std::string& name,
                        const TensorLocation& weight) {
  const TensorLocation scale = checkpoint.Find(name);
  if (weight.entry->dtype != "F8_E4M3") {
    if (scale.entry == nullptr) return absl::OkStatus();
    return Refuse(scale.file->path(), name,
                  absl::StrFormat("unexpected scales: the weight is %s", weight.entry->dtype));
  }
  if (scale.entry == nullptr) return Refuse(weight.file->path(), name, "missing: the weight is F8_E4M3");
  if (scale.entry->dtype != "F32") {
    return Refuse(scale.file->path(), name, absl::StrFormat("dtype: %s, allowed F32", scale.entry->dtype));
  }
  return CheckShape(scale, ScaleShape(config, weight.entry->shape));
}

}  // namespace

absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ModelDescription& description) {
  absl::flat_hash_set<std::string_view> known;
  for (const TensorSpec& spec : description.tensors) {
    if (IsPacked(checkpoint, config, spec)) {
      RETURN_IF_ERROR(CheckPacked(checkpoint, config, spec));
      for (const std::string& name : PackedNames(config, spec))
        known.insert(checkpoint.Find(name).entry->name);
      continue;
    }
    const TensorLocation found = checkpoint.Find(spec.name);
    if (found.entry == nullptr) {
      if (spec.kind == TensorKind::kUnread) continue;
      return Refuse(checkpoint.main_file(), spec.name, "missing");
    }
    known.insert(spec.name);
    RETURN_IF_ERROR(CheckDType(found, config.fp8_blocks && !spec.scale.empty()));
    RETURN_IF_ERROR(CheckShape(found, spec.shape));
    if (spec.scale.empty()) continue;
    RETURN_IF_ERROR(CheckScale(checkpoint, config, spec.scale, found));
    RETURN_IF_ERROR(CheckUnpacked(checkpoint, spec));
    known.insert(spec.scale);
  }
  for (const TensorLocation& tensor : checkpoint.tensors()) {
    const std::string& name = tensor.entry->name;
    if (known.contains(name)) continue;
    if (!description.unread_ending.empty() && name.ends_with(description.unread_ending)) continue;
    return Refuse(
        tensor.file->path(), name,
        absl::StrFormat("not part of %s with num_hidden_layers %d, num_nextn_predict_layers %d",
                        config.architecture, config.num_hidden_layers, config.num_nextn_predict_layers));
  }
  return absl::OkStatus();
}

}  // namespace foredraft
