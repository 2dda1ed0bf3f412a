#include "engine/checkpoint/model_description.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "kernels/random_weight.h"

namespace foredraft {

int64_t TensorSpec::element_count() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::span<const TensorSpec* const> WeightSpec::parts(int index) const {
  const size_t part_count = tensors.size() / expert_count;
  return std::span(tensors).subspan(index * part_count, part_count);
}

int WeightSpec::rows() const {
  int64_t rows = 0;
  for (const TensorSpec* part : parts()) rows += part->shape.front();
  return static_cast<int>(rows);
}

bool WeightSpec::is_quantised() const {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const TensorSpec* tensor) { return tensor->is_quantised(); });
}

const TensorSpec* ModelDescription::Tensor(TensorSpec tensor) {
  tensors.push_back(std::move(tensor));
  return &tensors.back();
}

float RandomAmplitude(const TensorSpec& tensor, const ModelDescription& model) {
  const float per_input = 1 / std::sqrt(static_cast<float>(tensor.shape.back()));
  switch (tensor.kind) {
    case TensorKind::kEmbedding:
      return 1;
    case TensorKind::kHead:
      return 3 * per_input;      // so that logits differ
    case TensorKind::kResidual:  // the sum over the layers stays of order one
      return per_input / std::sqrt(2.0f * static_cast<float>(model.layer_count));
    default:
      return per_input;
  }
}

std::vector<int32_t> RandomIds(const TensorSpec& tensor, const ModelDescription& model, uint64_t seed) {
  CHECK(tensor.kind == TensorKind::kIds);
  const int64_t per_row = tensor.shape[1];
  const auto count = static_cast<uint64_t>(model.expert_count);
  std::vector<int32_t> ids(tensor.element_count());
  for (int64_t i = 0; i < tensor.element_count(); ++i) {
    const auto row = ids.begin() + i / per_row * per_row;
    auto id = static_cast<int32_t>(RandomBits(seed, i) % count);
    while (std::find(row, ids.begin() + i, id) != ids.begin() + i) id = (id + 1) % model.expert_count;
    ids[i] = id;
  }
  return ids;
}

}  // namespace foredraft
