#pragma once

// How ranks share the work on a model. There are W = attention_dp * attention_tp = moe_ep * moe_tp ranks,
// each factor 1, 2, 4 or 8. The ranks of an attention group ("tensor group") share every request of the
// group: each has some heads, some columns of the MLPs and some rows of the head. Routed experts are spread
// over all ranks, across tensor groups. Ranks are divided in no other way.

namespace foredraft {

struct RankLayout {
  int attention_dp = 1;  // tensor groups; each has requests of its own
  int attention_tp = 1;  // ranks of a tensor group
  int moe_ep = 1;        // groups of ranks that have different experts
  int moe_tp = 1;        // ranks that share the columns of an expert

  // DataParallel: each rank has requests of its own. TensorParallel: all ranks share all requests.
  static constexpr RankLayout DataParallel(int ranks) { return {.attention_dp = ranks, .moe_ep = ranks}; }
  static constexpr RankLayout TensorParallel(int ranks) { return {.attention_tp = ranks, .moe_ep = ranks}; }

  constexpr int world_size() const { return attention_dp * attention_tp; }
  // The tensor group of rank `rank`, which is the group's index in a plan, and the rank's place in it.
  constexpr int group(int rank) const { return rank / attention_tp; }
  constexpr int place(int rank) const { return rank % attention_tp; }
  // The group of experts that rank `rank` has, and its part of their columns. With several tensor groups of
  // several ranks, ranks of equal place have adjacent groups of experts, because these ranks exchange rows.
  constexpr int expert_group(int rank) const {
    if (attention_dp > 1 && attention_tp > 1) return place(rank) * attention_dp + group(rank);
    return rank / moe_tp;
  }
  constexpr int column_part(int rank) const { return rank % moe_tp; }

  bool operator==(const RankLayout&) const = default;
};

}  // namespace foredraft
