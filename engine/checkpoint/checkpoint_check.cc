#include "engine/checkpoint/checkpoint_check.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/checkpoint/pack_quantized.h"

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

absl::Status CheckDTypeIs(const TensorLocation& found, const char* dtype) {
  if (found.entry->dtype == dtype) return absl::OkStatus();
  return Refuse(found.file->path(), found.entry->name,
                absl::StrFormat("dtype: %s, allowed %s", found.entry->dtype, dtype));
}

// A tensor with E8M0 scales under `scale_name` (docs/deepseek-v4.md section 8): F8_E4M3 in blocks, I8 with
// FP4 codes in groups of 32 columns where the spec allows that, or neither and without scales.
absl::Status CheckE8m0(const Checkpoint& checkpoint, const ModelConfig& config, const TensorSpec& spec,
                       const TensorLocation& found, const std::string& scale_name) {
  const std::string& dtype = found.entry->dtype;
  const bool fp4 = config.fp8_blocks && spec.fp4 && dtype == "I8";
  if (!fp4) RETURN_IF_ERROR(CheckDType(found, config.fp8_blocks));
  const int64_t rows = spec.shape[0], columns = spec.shape[1];
  RETURN_IF_ERROR(CheckShape(found, fp4 ? std::vector<int64_t>{rows, columns / 2} : spec.shape));
  const TensorLocation scale = checkpoint.Find(scale_name);
  if (!fp4 && dtype != "F8_E4M3") {
    if (scale.entry == nullptr) return absl::OkStatus();
    return Refuse(scale.file->path(), scale_name,
                  absl::StrFormat("unexpected scales: the weight is %s", dtype));
  }
  if (scale.entry == nullptr) {
    return Refuse(found.file->path(), scale_name, absl::StrFormat("missing: the weight is %s", dtype));
  }
  RETURN_IF_ERROR(CheckDTypeIs(scale, "F8_E8M0"));
  return CheckShape(scale,
                    fp4 ? std::vector<int64_t>{rows, columns / kFp4Group} : ScaleShape(config, spec.shape));
}

// True if the checkpoint has a tensor of MTP module `module` beside copies of the target's.
bool HasModule(const Checkpoint& checkpoint, const ModelDescription& description, int module) {
  return std::any_of(description.tensors.begin(), description.tensors.end(), [&](const TensorSpec& tensor) {
    return tensor.mtp_module == module && tensor.kind != TensorKind::kUnread &&
           checkpoint.Find(tensor.name).entry != nullptr;
  });
}

bool HasAnyModule(const Checkpoint& checkpoint, const ModelDescription& description) {
  const int count = description.model->module_count();
  for (int module = 0; module < count; ++module) {
    if (HasModule(checkpoint, description, module)) return true;
  }
  return false;
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

absl::StatusOr<int> CheckCheckpoint(const Checkpoint& checkpoint, const ModelConfig& config) {
  const int declared = config.num_nextn_predict_layers;
  if (declared > 0) {
    const ModelDescription whole = DescribeModel(config, declared);
    if (HasAnyModule(checkpoint, whole)) {
      RETURN_IF_ERROR(CheckTensors(checkpoint, config, whole));
      return declared;
    }
  }
  int stored = 0;
  while (HasModule(checkpoint, DescribeModel(config, stored + 1), stored)) ++stored;
  RETURN_IF_ERROR(CheckTensors(checkpoint, config, DescribeModel(config, stored)));
  return 0;
}

absl::Status CheckModuleCount(const std::string& dir, const ModelConfig& config, int wanted, int loadable) {
  if (wanted <= loadable) return absl::OkStatus();
  const int declared = config.num_nextn_predict_layers;
  std::string why = "config.json declares no more (num_nextn_predict_layers)";
  if (declared > loadable) {
    why = absl::StrFormat(
        "config.json declares %d (num_nextn_predict_layers), but the checkpoint has no tensor of them, as "
        "after "
        "transformers has saved it; serve without speculative_config, or use the original checkpoint",
        declared);
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: MTP modules: %d, allowed 0..%d: %s", dir, wanted, loadable, why));
}

absl::Status CheckCopies(const Checkpoint& checkpoint, const ModelDescription& description) {
  for (const TensorSpec& spec : description.tensors) {
    if (spec.copy_of.empty()) continue;
    const TensorLocation copy = checkpoint.Find(spec.name);
    if (copy.entry == nullptr) continue;
    ASSIGN_OR_RETURN(const bool equal, AreEqual(copy, checkpoint.Find(spec.copy_of)));
    if (equal) continue;
    return Refuse(copy.file->path(), spec.name,
                  absl::StrFormat("differs from %s, although config.json ties them: remove the tensor or set "
                                  "tie_word_embeddings to false",
                                  spec.copy_of));
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ModelDescription& description) {
  absl::flat_hash_set<const TensorEntry*> known;
  for (const TensorSpec& spec : description.tensors) {
    if (IsPacked(checkpoint, config, spec)) {
      RETURN_IF_ERROR(CheckPacked(checkpoint, config, spec));
      for (const std::string& name : PackedNames(config, spec)) known.insert(checkpoint.Find(name).entry);
      continue;
    }
    const TensorLocation found = checkpoint.Find(spec.name);
    if (found.entry == nullptr) {
      if (spec.kind == TensorKind::kUnread) continue;
      return Refuse(checkpoint.main_file(), spec.name, "missing");
    }
    known.insert(found.entry);
    if (spec.kind == TensorKind::kIds) {
      RETURN_IF_ERROR(CheckDTypeIs(found, "I64"));
      RETURN_IF_ERROR(CheckShape(found, spec.shape));
      continue;
    }
    if (spec.scale_format == ScaleFormat::kE8m0) {
      RETURN_IF_ERROR(CheckE8m0(checkpoint, config, spec, found, spec.scale));
      RETURN_IF_ERROR(CheckUnpacked(checkpoint, spec));
      known.insert(checkpoint.Find(spec.scale).entry);
      continue;
    }
    RETURN_IF_ERROR(CheckDType(found, config.fp8_blocks && !spec.scale.empty()));
    RETURN_IF_ERROR(CheckShape(found, spec.shape));
    if (spec.scale.empty()) continue;
    RETURN_IF_ERROR(CheckScale(checkpoint, config, spec.scale, found));
    RETURN_IF_ERROR(CheckUnpacked(checkpoint, spec));
    known.insert(checkpoint.Find(spec.scale).entry);
  }
  for (const TensorLocation& tensor : checkpoint.tensors()) {
    const std::string& name = tensor.entry->name;
    if (known.contains(tensor.entry)) continue;
    if (!description.unread_ending.empty() && name.ends_with(description.unread_ending)) continue;
    return Refuse(
        tensor.file->path(), name,
        absl::StrFormat("not part of %s with num_hidden_layers %d, num_nextn_predict_layers %d",
                        config.architecture, config.num_hidden_layers, config.num_nextn_predict_layers));
  }
  return absl::OkStatus();
}

}  // namespace foredraft
