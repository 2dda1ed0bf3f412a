#include "engine/weights/weight_source.h"

#include <variant>

#include "base/status_macros.h"

namespace foredraft {

absl::StatusOr<ModelWeights> WeightSource::Make(const ModelDescription& description) {
  for (const WeightSpec& weight : description.weights) {
    for (const TensorSpec* tensor : TensorsHere(weight)) total_bytes_ += BytesOf(*tensor);
  }
  for (const WeightSpec& weight : description.weights) {
    if (TensorsHere(weight).empty()) continue;  // fewer experts than ranks: the member stays absent
    RETURN_IF_ERROR(std::visit([&](const auto& member) { return Set(member, weight); }, weight.member));
  }
  target_.stream.Synchronize();
  return *description.model;
}

void WeightSource::Advance(std::span<const TensorSpec* const> tensors) {
  int64_t bytes = 0;
  for (const TensorSpec* tensor : tensors) bytes += BytesOf(*tensor);
  Advance(bytes);
}

void WeightSource::Advance(int64_t bytes) {
  done_bytes_ += bytes;
  if (target_.progress) target_.progress(done_bytes_, total_bytes_);
}

absl::StatusOr<const float*> WeightSource::Upload(std::span<const float> values) {
  ASSIGN_OR_RETURN(float* const memory, target_.device.AllocateArray<float>(values.size()));
  target_.device.CopyToDevice(target_.stream, memory, values.data(), values.size_bytes());
  return static_cast<const float*>(memory);
}

std::span<const TensorSpec* const> WeightSource::TensorsHere(const WeightSpec& weight) const {
  if (!std::holds_alternative<ExpertsMember>(weight.member)) return weight.tensors;
  const size_t part_count = weight.tensors.size() / weight.expert_count;
  return std::span(weight.tensors)
      .subspan(first_expert(weight) * part_count, expert_count(weight) * part_count);
}

}  // namespace foredraft
