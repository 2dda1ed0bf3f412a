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

TensorSlice WeightSpec::slice(int index) const {
  if (!slices.empty()) return slices[index];
  const std::vector<int64_t>& shape = parts()[index]->shape;
  return {.rows = {0, static_cast<int32_t>(shape.front())},
          .columns = {0, shape.size() > 1 ? static_cast<int32_t>(shape.back()) : 1}};
}

void WeightSpec::CutRows(std::initializer_list<IndexRange> rows) {
  CHECK_EQ(rows.size(), parts().size()) << name;
  std::vector<TensorSlice> cut;
  bool whole = true;
  for (const IndexRange& own : rows) {
    cut.push_back(slice(static_cast<int>(cut.size())));
    whole &= cut.back().rows == own;
    cut.back().rows = own;
  }
  if (!whole) slices = std::move(cut);
}

void WeightSpec::CutColumns(const IndexRange& columns, int32_t segment_unit) {
  CHECK_EQ(tensors.size(), 1u) << name;
  const int32_t count = SegmentCount(this->columns(), segment_unit);
  segments = count > 1 ? count : 0;
  TensorSlice cut = slice(0);
  if (cut.columns == columns) return;
  cut.columns = columns;
  slices = {cut};
}

bool WeightSpec::CutsBlocks() const {
  // Weights of heads and groups become BF16 before they are cut.
  if (std::holds_alternative<KvBMember>(member) || std::holds_alternative<RowGroupsMember>(member))
    return false;
  for (size_t i = 0; i < slices.size(); ++i) {
    const WeightFormat& format = parts()[i]->format;
    if (!format.has_scales() || !parts()[i]->is_quantised()) continue;
    const auto cuts = [](const IndexRange& range, int64_t all, int32_t block) {
      return range.first % block != 0 || (range.end() % block != 0 && range.end() != all);
    };
    if (cuts(slices[i].rows, parts()[i]->shape.front(), format.rows) ||
        cuts(slices[i].columns, parts()[i]->shape.back(), format.columns)) {
      return true;
    }
  }
  return false;
}

void WeightSpec::Mark(PackedWeight& packed) const {
  if (segments > 0) packed.segments = segments * packed.k / columns();
  if (slices.empty()) return;
  packed.whole_n = rows();
  packed.whole_k = columns();
}

bool WeightSpec::is_quantised() const {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const TensorSpec* tensor) { return tensor->is_quantised(); });
}

bool ModelDescription::IsOfUnreadPart(std::string_view name) const {
  return std::ranges::any_of(unread_beginnings,
                             [&](const std::string& beginning) { return name.starts_with(beginning); });
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
      return 3 * per_input;      // large enough that logits differ
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
