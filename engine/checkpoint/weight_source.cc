#include "engine/checkpoint/weight_source.h"

#include <algorithm>
#include <functional>
#include <variant>

#include "base/status_macros.h"

namespace foredraft {
namespace {

// A table is the largest tensor and needs no packing: it goes to the device in pieces.
constexpr int64_t kTablePieceElements = int64_t{1} << 24;

}  // namespace

absl::StatusOr<LoadedWeights> WeightSource::Make(const ModelDescription& description) {
  for (const WeightSpec& weight : description.weights) {
    for (const TensorSpec* tensor : weight.tensors) total_bytes_ += BytesOf(*tensor);
  }
  for (const WeightSpec& weight : description.weights) {
    if (const auto* const experts = std::get_if<ExpertsMember>(&weight.member)) {
      RETURN_IF_ERROR(SetInputs(description, *experts));
    }
    if (weight.tensors.empty()) {
      Skip();
      continue;
    }
    RETURN_IF_ERROR(std::visit([&](const auto& member) { return Set(weight, member); }, weight.member));
  }
  stream_.Synchronize();
  return *description.model;
}

// A rank without experts gets the layer's first scale: it may have to round rows for other ranks.
absl::Status WeightSource::SetInputs(const ModelDescription& description, const ExpertsMember& experts) {
  input_scales_.clear();
  if (!description.nvfp4_inputs) return absl::OkStatus();
  ASSIGN_OR_RETURN(input_scales_, InputScalesOf(experts));
  if (input_scales_.empty()) return absl::OkStatus();
  const ExpertShard shard = description.shard.experts();
  const auto first = input_scales_.begin() + shard.first_expert(description.expert_count);
  std::vector<float> own(first, first + shard.expert_count_here(description.expert_count));
  if (own.empty()) own.push_back(input_scales_.front());
  ASSIGN_OR_RETURN(float* const memory, device_.AllocateArray<float>(own.size()));
  device_.CopyToDevice(stream_, memory, own.data(), own.size() * sizeof(float));
  experts.inputs->values = memory;
  experts.inputs->alike = std::adjacent_find(input_scales_.begin(), input_scales_.end(),
                                             std::not_equal_to<>()) == input_scales_.end();
  return absl::OkStatus();
}

absl::Status WeightSource::Set(const WeightSpec& weight, const VectorMember& member) {
  std::vector<float> values(member.leading_zeros, 0.0f);
  for (size_t i = 0; i < weight.tensors.size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<float> all, Values(weight, *weight.tensors[i]));
    const IndexRange rows = weight.slice(static_cast<int>(i)).rows;
    const auto width = static_cast<int64_t>(all.size()) / weight.tensors[i]->shape.front();  // of a row
    values.insert(values.end(), all.begin() + rows.first * width, all.begin() + rows.end() * width);
  }
  ASSIGN_OR_RETURN(float* const memory, device_.AllocateArray<float>(values.size()));
  device_.CopyToDevice(stream_, memory, values.data(), values.size() * sizeof(float));
  *member.out = memory;
  Advance(weight.tensors);
  return absl::OkStatus();
}

absl::Status WeightSource::Set(const WeightSpec& weight, const IdsMember& member) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, Ids(*weight.tensors[0]));
  ASSIGN_OR_RETURN(int32_t* const memory, device_.AllocateArray<int32_t>(ids.size()));
  device_.CopyToDevice(stream_, memory, ids.data(), ids.size() * sizeof(int32_t));
  *member.out = memory;
  Advance(weight.tensors);
  return absl::OkStatus();
}

absl::Status WeightSource::Set(const WeightSpec& weight, const TableMember& member) {
  const TensorSpec& tensor = *weight.tensors[0];
  const int64_t count = tensor.element_count();
  ASSIGN_OR_RETURN(bf16* const table, device_.AllocateArray<bf16>(count));
  std::vector<bf16> piece;
  for (int64_t first = 0; first < count; first += kTablePieceElements) {
    piece.resize(std::min(kTablePieceElements, count - first));
    RETURN_IF_ERROR(Read(weight, first, piece));
    device_.CopyToDevice(stream_, table + first, piece.data(), piece.size() * sizeof(bf16));
    Advance(BytesOf(tensor) / count * static_cast<int64_t>(piece.size()));
  }
  *member.out = table;
  return absl::OkStatus();
}

void WeightSource::Advance(std::span<const TensorSpec* const> done) {
  int64_t bytes = 0;
  for (const TensorSpec* tensor : done) bytes += BytesOf(*tensor);
  Advance(bytes);
}

void WeightSource::Advance(int64_t bytes) {
  done_bytes_ += bytes;
  if (progress_) progress_(done_bytes_, total_bytes_);
}

}  // namespace foredraft
