// Elements without scales, in BF16 or F32.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/formats/packed.h"
#include "engine/checkpoint/formats/stored_format.h"

namespace foredraft {
namespace {

bool IsMeant(const ModelDescription&, const TensorSpec&) { return true; }

bool IsThere(const Checkpoint& checkpoint, const TensorSpec& spec) {
  return checkpoint.Find(spec.name).entry != nullptr;
}

std::vector<StoredTensor> Tensors(const ModelDescription&, const TensorSpec& spec) {
  return {{spec.name, spec.kept_f32 ? "F32" : "BF16", spec.shape}};
}

absl::Status Check(const Checkpoint& checkpoint, const ModelDescription& model, const TensorSpec& spec) {
  const TensorLocation found = checkpoint.Find(spec.name);
  const std::string& dtype = found.entry->dtype;
  if (dtype != "BF16" && dtype != "F32") {
    std::string allowed = "BF16, F32";
    const auto formats = StoredFormats();
    for (auto format = formats.rbegin(); format != formats.rend(); ++format) {
      if ((*format)->weight_dtype == nullptr || !(*format)->is_meant(model, spec)) continue;
      absl::StrAppend(&allowed, ", ", (*format)->weight_dtype);
    }
    return CheckStoredDType(found, allowed);
  }
  RETURN_IF_ERROR(CheckStoredShape(found, spec.shape));
  if (spec.scale.empty()) return absl::OkStatus();
  if (const TensorLocation scale = checkpoint.Find(spec.scale); scale.entry != nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: unexpected scales: the weight is %s",
                                                      scale.file->path(), spec.scale, dtype));
  }
  return CheckUnpacked(checkpoint, spec);
}

absl::StatusOr<HostTensor> Read(const Checkpoint& checkpoint, const ModelDescription&,
                                const TensorSpec& spec) {
  const TensorLocation found = checkpoint.Find(spec.name);
  const TensorEntry& entry = *found.entry;
  HostTensor tensor;
  tensor.format = {.code = entry.dtype == "F32" ? DType::kF32 : DType::kBF16};
  tensor.n = entry.shape.size() == 1 ? 1 : static_cast<int32_t>(entry.shape[0]);
  tensor.k = static_cast<int32_t>(entry.shape.back());
  tensor.data = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(entry.bytes));
  RETURN_IF_ERROR(found.file->Read(entry, 0, entry.bytes, tensor.data.get()));
  return tensor;
}

}  // namespace

const StoredFormat kPlainStored = {
    .is_meant = IsMeant, .is_there = IsThere, .tensors = Tensors, .check = Check, .read = Read};

}  // namespace foredraft
