#include "engine/checkpoint/formats/packed.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

std::string CodesName(const TensorSpec& spec) { return spec.name + "_packed"; }
std::string ScalesName(const TensorSpec& spec) { return spec.name + "_scale"; }

// Refuses parts that would change the meaning of codes and scales.
absl::Status CheckNoMore(const Checkpoint& checkpoint, const TensorSpec& spec) {
  const struct {
    const char* ending;
    const char* reason;
  } refused[] = {{"_zero_point", "zero points, allowed symmetric codes"},
                 {"_g_idx", "permuted columns, allowed groups of adjacent columns"},
                 {"_global_scale", "a scale of scales (NVFP4), allowed one scale per group"},
                 {"_scale_2", "a scale of scales (NVFP4), allowed one scale per group"}};
  for (const auto& [ending, reason] : refused) {
    const TensorLocation tensor = checkpoint.Find(spec.name + ending);
    if (tensor.entry != nullptr) return RefuseTensor(tensor, reason);
  }
  return absl::OkStatus();
}

}  // namespace

bool HasPackedCodes(const Checkpoint& checkpoint, const TensorSpec& spec) {
  return checkpoint.Find(CodesName(spec)).entry != nullptr;
}

absl::StatusOr<TensorLocation> FindPart(const Checkpoint& checkpoint, const std::string& name,
                                        const TensorSpec& spec) {
  const TensorLocation part = checkpoint.Find(name), codes = checkpoint.Find(CodesName(spec));
  if (part.entry != nullptr) return part;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: tensor %s: missing: %s is there", codes.file->path(), name, codes.entry->name));
}

absl::Status CheckPackedCodes(const Checkpoint& checkpoint, const WeightFormat& format,
                              const TensorSpec& spec, const StoredTensor* wanted) {
  const TensorLocation codes = checkpoint.Find(CodesName(spec));
  const TensorLocation plain = checkpoint.Find(spec.name);
  if (plain.entry != nullptr) return RefuseTensor(plain, "given twice: " + CodesName(spec) + " is there too");
  RETURN_IF_ERROR(CheckNoMore(checkpoint, spec));
  const int64_t k = spec.shape[1];
  if (k % format.columns != 0) {
    return RefuseTensor(
        codes,
        absl::StrFormat("columns: %d, allowed multiples of the group, %d: such a module has to stay unpacked",
                        k, format.columns));
  }
  if (wanted == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(CheckStoredDType(codes, wanted->dtype));
  return CheckStoredShape(codes, wanted->shape);
}

absl::Status CheckPackedScales(const Checkpoint& checkpoint, const WeightFormat& format,
                               const TensorSpec& spec, const std::vector<std::string>& dtypes) {
  ASSIGN_OR_RETURN(const TensorLocation scales, FindPart(checkpoint, ScalesName(spec), spec));
  if (std::find(dtypes.begin(), dtypes.end(), scales.entry->dtype) == dtypes.end()) {
    return CheckStoredDType(scales, absl::StrJoin(dtypes, ", "));
  }
  return CheckStoredShape(scales, ScaleShape(format, spec.shape),
                          absl::StrFormat("a group of %d", format.columns));
}

absl::Status CheckUnpacked(const Checkpoint& checkpoint, const TensorSpec& spec) {
  RETURN_IF_ERROR(CheckNoMore(checkpoint, spec));
  for (const std::string& name : {CodesName(spec), ScalesName(spec), spec.name + "_shape"}) {
    const TensorLocation part = checkpoint.Find(name);
    if (part.entry != nullptr) return RefuseTensor(part, "unexpected: " + spec.name + " is not packed");
  }
  return absl::OkStatus();
}

absl::Status CheckCodesAndScales(const Checkpoint& checkpoint, const TensorSpec& spec,
                                 const std::vector<StoredTensor>& wanted) {
  const TensorLocation codes = checkpoint.Find(wanted[0].name), scales = checkpoint.Find(wanted[1].name);
  RETURN_IF_ERROR(CheckStoredShape(codes, wanted[0].shape));
  if (scales.entry == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: missing: the weight is %s",
                                                      codes.file->path(), wanted[1].name, wanted[0].dtype));
  }
  RETURN_IF_ERROR(CheckStoredDType(scales, wanted[1].dtype));
  RETURN_IF_ERROR(CheckStoredShape(scales, wanted[1].shape));
  return CheckUnpacked(checkpoint, spec);
}

absl::StatusOr<HostTensor> ReadPacked(const Checkpoint& checkpoint, const ModelDescription& model,
                                      const TensorSpec& spec) {
  return ReadCodesAndScales(checkpoint.Find(CodesName(spec)), checkpoint.Find(ScalesName(spec)),
                            model.projections, spec);
}

}  // namespace foredraft
