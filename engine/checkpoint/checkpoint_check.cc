#include "engine/checkpoint/checkpoint_check.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/checkpoint/formats/stored_format.h"

namespace foredraft {
namespace {

absl::Status Refuse(const std::string& file, const std::string& tensor, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: %s", file, tensor, what));
}

// Compares the data of two tensors in pieces. Tensors of different dtypes are different.
absl::StatusOr<bool> AreEqual(const TensorLocation& a, const TensorLocation& b) {
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  if (a.entry->dtype != b.entry->dtype || a.entry->shape != b.entry->shape) return false;
  std::vector<char> piece_a, piece_b;
  for (int64_t done = 0; done < a.entry->bytes; done += kPieceBytes) {
    const int64_t bytes = std::min(kPieceBytes, a.entry->bytes - done);
    piece_a.resize(bytes);
    piece_b.resize(bytes);
    RETURN_IF_ERROR(a.file->Read(*a.entry, done, bytes, piece_a.data()));
    RETURN_IF_ERROR(b.file->Read(*b.entry, done, bytes, piece_b.data()));
    if (std::memcmp(piece_a.data(), piece_b.data(), bytes) != 0) return false;
  }
  return true;
}

}  // namespace

bool IsCacheScale(const std::string& name) {
  constexpr const char* kEndings[] = {".k_scale", ".v_scale", ".q_scale", ".kv_scale"};
  return name.find(".self_attn.") != std::string::npos &&
         std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](const char* ending) { return name.ends_with(ending); });
}

bool IsInputScale(const std::string& name) {
  return name.ends_with(".input_scale") || name.ends_with(".input_global_scale");
}

// Explains a tensor that differs from the tensor that it should copy: a head that config.json ties to the
// embedding, or a drafter's copy of one of the target's tensors.
std::string DifferenceOf(const TensorSpec& spec) {
  if (spec.mtp_module < 0) {
    return absl::StrFormat(
        "differs from %s, although config.json ties them: remove the tensor or set tie_word_embeddings to "
        "false",
        spec.copy_of);
  }
  return absl::StrFormat(
      "differs from %s, with which drafts are made: the drafter seems to belong to another target. Remove "
      "the tensor to draft with the target's all the same, or serve without speculative_config",
      spec.copy_of);
}

absl::Status CheckCopies(const Checkpoint& checkpoint, const ModelDescription& description) {
  for (const TensorSpec& spec : description.tensors) {
    if (spec.copy_of.empty()) continue;
    const TensorLocation copy = checkpoint.Find(spec.name);
    if (copy.entry == nullptr) continue;
    ASSIGN_OR_RETURN(const bool equal, AreEqual(copy, checkpoint.Find(spec.copy_of)));
    if (equal) continue;
    return Refuse(copy.file->path(), spec.name, DifferenceOf(spec));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ReadInputScales(const Checkpoint& checkpoint,
                                                   const ModelDescription& description,
                                                   const ExpertsMember& experts) {
  const size_t part_count = experts.of_layer.size() / description.expert_count;
  std::vector<float> scales(description.expert_count, 0.0f);
  const TensorSpec* without = nullptr;
  for (size_t i = 0; i < experts.of_layer.size(); ++i) {
    const TensorSpec& spec = *experts.of_layer[i];
    const StoredFormat* const stored = FindStored(checkpoint, description, spec);
    CHECK(stored != nullptr) << spec.name;
    if (stored->input_scale == nullptr) {
      without = &spec;
      continue;
    }
    ASSIGN_OR_RETURN(const float scale, stored->input_scale(checkpoint, spec));
    scales[i / part_count] = std::max(scales[i / part_count], scale);
  }
  if (without == nullptr) return scales;
  const bool none = *std::max_element(scales.begin(), scales.end()) == 0;
  if (none && without->mtp_module >= 0) return std::vector<float>();
  const std::string name =
      FindStored(checkpoint, description, *without)->tensors(description, *without)[0].name;
  return Refuse(checkpoint.Find(name).file->path(), name,
                "not in NVFP4, as experts have to be with moe.inputs: nvfp4; bf16 takes it");
}

absl::Status CheckInputScales(const Checkpoint& checkpoint, const ModelDescription& description) {
  if (!description.nvfp4_inputs) return absl::OkStatus();
  for (const WeightSpec& weight : description.weights) {
    const auto* const experts = std::get_if<ExpertsMember>(&weight.member);
    if (experts == nullptr) continue;
    RETURN_IF_ERROR(ReadInputScales(checkpoint, description, *experts).status());
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelDescription& description) {
  absl::flat_hash_set<const TensorEntry*> known;
  for (const TensorSpec& spec : description.tensors) {
    const StoredFormat* const stored = FindStored(checkpoint, description, spec);
    if (stored == nullptr) {
      if (spec.kind == TensorKind::kUnread) continue;
      return Refuse(checkpoint.main_file(), spec.name, "missing");
    }
    if (spec.kind == TensorKind::kIds) {
      const TensorLocation found = checkpoint.Find(spec.name);
      RETURN_IF_ERROR(CheckStoredDType(found, "I64"));
      RETURN_IF_ERROR(CheckStoredShape(found, spec.shape));
    } else {
      RETURN_IF_ERROR(stored->check(checkpoint, description, spec));
    }
    for (const StoredTensor& tensor : stored->tensors(description, spec)) {
      known.insert(checkpoint.Find(tensor.name).entry);
    }
    if (stored->input_scale_name == nullptr) continue;
    known.insert(checkpoint.Find(stored->input_scale_name(spec)).entry);
  }
  for (const TensorLocation& tensor : checkpoint.tensors()) {
    const std::string& name = tensor.entry->name;
    if (known.contains(tensor.entry) || IsCacheScale(name)) continue;
    if (!description.unread_ending.empty() && name.ends_with(description.unread_ending)) continue;
    if (description.IsOfUnreadPart(name)) continue;
    return Refuse(tensor.file->path(), name, absl::StrFormat("not part of %s", description.name));
  }
  return absl::OkStatus();
}

}  // namespace foredraft
