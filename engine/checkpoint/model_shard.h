#pragma once

// Which part of a model a rank has. A rank has a range of rows of each weight cut by outputs, and whole
// canonical segments of each weight cut by inputs (kernels/rules/weight_segments.h). All other weights are on
// every rank.

#include <algorithm>
#include <cstdint>

#include "engine/checkpoint/expert_shard.h"
#include "engine/checkpoint/rank_layout.h"
#include "kernels/rules/weight_segments.h"
#include "kernels/weight_format.h"

namespace foredraft {

// [first, first + count).
struct IndexRange {
  int32_t first = 0;
  int32_t count = 0;

  constexpr int32_t end() const { return first + count; }
  bool operator==(const IndexRange&) const = default;
};

// The inputs of a canonical segment are a multiple of this number, for all weights of a model whose
// projections have this format, so that blocks and groups of scales stay whole.
constexpr int32_t SegmentUnit(const WeightFormat& projections) { return projections.has_scales() ? 128 : 16; }

// The number of adjacent columns of an expert, inner or output columns, that are never split between ranks.
constexpr int32_t ExpertColumnUnit(const WeightFormat& experts) {
  return experts.rows > 1 ? experts.rows : 16;
}

struct ModelShard {
  RankLayout layout;
  int rank = 0;  // of all

  int group() const { return layout.group(rank); }
  int place() const { return layout.place(rank); }
  // The first rank of its tensor group.
  int first_of_group() const { return group() * layout.attention_tp; }
  ExpertShard experts() const { return {.rank = layout.expert_group(rank), .size = layout.moe_ep}; }

  // The rank's inputs of a weight that is cut along its `k` inputs: every rank of the tensor group has
  // equally many segments. All inputs if the weight has fewer segments than the group has ranks.
  IndexRange Inputs(int32_t k, int32_t unit) const {
    if (SegmentCount(k, unit) < layout.attention_tp) return {0, k};
    const int32_t count = k / layout.attention_tp;
    return {place() * count, count};
  }
  // The columns of an expert, inner or outer, that this rank computes.
  IndexRange ExpertColumns(int32_t columns) const {
    const int32_t count = columns / layout.moe_tp;
    return {layout.column_part(rank) * count, count};
  }
  // The heads, of `width` columns each, that have at least one of these columns.
  static constexpr IndexRange HeadsOf(const IndexRange& columns, int32_t width) {
    const int32_t first = columns.first / width;
    return {first, (columns.end() + width - 1) / width - first};
  }
  // Rows of lm_head per rank of the group: equal for all, so that gathered logits lie side by side, and a
  // multiple of 8, which fast products need.
  int32_t vocabulary_width(int32_t vocab_size) const {
    const int32_t share = (vocab_size + layout.attention_tp - 1) / layout.attention_tp;
    return layout.attention_tp == 1 ? vocab_size : (share + 7) / 8 * 8;
  }
  // This rank's rows of lm_head. A small vocabulary may end before the last ranks' parts: these ranks have
  // one row, whose logit nobody reads.
  IndexRange Vocabulary(int32_t vocab_size) const {
    const int32_t width = vocabulary_width(vocab_size);
    const int32_t first = std::min(place() * width, vocab_size - 1);
    return {first, std::min(width, vocab_size - first)};
  }
};

}  // namespace foredraft
