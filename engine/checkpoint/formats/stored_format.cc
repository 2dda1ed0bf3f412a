#include "engine/checkpoint/formats/stored_format.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/checkpoint/safetensors.h"

namespace foredraft {
namespace {

constexpr const StoredFormat* kStoredFormats[] = {
#define STORED(name) &name,
#include "engine/checkpoint/formats/list.inc"
};

// True for MLP projections of the target: NVIDIA's NVFP4 checkpoints of this family quantise these alone.
bool IsTargetMlp(const TensorSpec& spec) {
  return spec.mtp_module < 0 && spec.name.find(".mlp.") != std::string::npos;
}

}  // namespace

int64_t StoredTensor::bytes() const {
  int64_t bytes = SafetensorsElementBytes(dtype);
  for (const int64_t size : shape) bytes *= size;
  return bytes;
}

std::span<const StoredFormat* const> StoredFormats() { return kStoredFormats; }

const StoredFormat* FindStored(const Checkpoint& checkpoint, const ModelDescription& model,
                               const TensorSpec& spec) {
  for (const StoredFormat* format : kStoredFormats) {
    if (format->is_meant(model, spec) && format->is_there(checkpoint, spec)) return format;
  }
  return nullptr;
}

absl::StatusOr<HostTensor> ReadTensor(const Checkpoint& checkpoint, const ModelDescription& model,
                                      const TensorSpec& spec) {
  const StoredFormat* const stored = FindStored(checkpoint, model, spec);
  CHECK(stored != nullptr) << spec.name;
  return stored->read(checkpoint, model, spec);
}

int64_t StoredBytes(std::span<const StoredTensor> tensors) {
  int64_t bytes = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.part != StoredTensor::Part::kConstant) bytes += tensor.bytes();
  }
  return bytes;
}

FormatChoice::FormatChoice(const ModelDescription& model) : model_(model) {
  if (IsF8(model.projections)) {
    for (const TensorSpec& spec : model.tensors) {
      if (spec.is_quantised()) quantised_.insert(&spec);
    }
  }
  if (IsF8(model.projections)) return;
  for (const WeightSpec& weight : model.weights) {
    if (Quantises(weight)) quantised_.insert(weight.tensors.begin(), weight.tensors.end());
  }
}

bool FormatChoice::Quantises(const WeightSpec& weight) const {
  if (!IsQuantised(model_.projections) || weight.tensors.empty() || !weight.is_quantised()) return false;
  if (IsF8(model_.projections)) return true;
  if (model_.projections == kNvfp4Format && !IsTargetMlp(*weight.tensors.front())) return false;
  return !std::holds_alternative<KvBMember>(weight.member) &&
         !std::holds_alternative<RowGroupsMember>(weight.member) &&
         weight.columns() % model_.projections.columns == 0;
}

const StoredFormat& FormatChoice::Of(const TensorSpec& spec) const {
  if (!Quantises(spec)) return kPlainStored;
  return **std::find_if(std::begin(kStoredFormats), std::end(kStoredFormats),
                        [&](const StoredFormat* format) { return format->is_meant(model_, spec); });
}

absl::Status RefuseTensor(const TensorLocation& tensor, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: tensor %s: %s", tensor.file->path(), tensor.entry->name, what));
}

absl::Status CheckStoredDType(const TensorLocation& tensor, const std::string& allowed) {
  if (tensor.entry->dtype == allowed) return absl::OkStatus();
  return RefuseTensor(tensor, absl::StrFormat("dtype: %s, allowed %s", tensor.entry->dtype, allowed));
}

absl::Status CheckStoredShape(const TensorLocation& tensor, const std::vector<int64_t>& shape,
                              const std::string& why) {
  if (tensor.entry->shape == shape) return absl::OkStatus();
  return RefuseTensor(
      tensor, absl::StrFormat("shape: [%s], %s makes it [%s]", absl::StrJoin(tensor.entry->shape, ", "), why,
                              absl::StrJoin(shape, ", ")));
}

std::vector<int64_t> ScaleShape(const WeightFormat& format, const std::vector<int64_t>& weight_shape) {
  return {format.scale_rows(weight_shape[0]), format.scale_columns(weight_shape[1])};
}

absl::StatusOr<std::vector<char>> ReadStored(const TensorLocation& tensor) {
  std::vector<char> bytes(static_cast<size_t>(tensor.entry->bytes));
  RETURN_IF_ERROR(tensor.file->Read(*tensor.entry, 0, tensor.entry->bytes, bytes.data()));
  return bytes;
}

absl::StatusOr<HostTensor> ReadCodesAndScales(const TensorLocation& codes, const TensorLocation& scales,
                                              const WeightFormat& format, const TensorSpec& spec) {
  HostTensor tensor;
  tensor.format = WithWideScales(format);
  tensor.n = static_cast<int32_t>(spec.shape[0]);
  tensor.k = static_cast<int32_t>(spec.shape[1]);
  tensor.data = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(codes.entry->bytes));
  RETURN_IF_ERROR(codes.file->Read(*codes.entry, 0, codes.entry->bytes, tensor.data.get()));
  ASSIGN_OR_RETURN(tensor.scales, ReadStored(scales));
  if (format.scale != DType::kE8M0) return tensor;
  // The reader takes scales stored as U8 for integers and does not detect NaN.
  const auto nan = std::find(tensor.scales.begin(), tensor.scales.end(), static_cast<char>(0xff));
  if (nan != tensor.scales.end()) {
    const int64_t index = nan - tensor.scales.begin(), columns = scales.entry->shape.back();
    return RefuseTensor(scales, absl::StrFormat("element [%d, %d]: nan, allowed finite scales",
                                                index / columns, index % columns));
  }
  tensor.WidenScales();
  return tensor;
}

int RandomExponent(float amplitude, float largest) {
  return static_cast<int>(std::ceil(std::log2(amplitude * kRandomBound / largest)));
}

}  // namespace foredraft
