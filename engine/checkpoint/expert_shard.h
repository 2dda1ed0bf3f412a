#pragma once

// The routed experts that a rank has: rank r of N has the experts of canonical slices 8r/N to 8(r+1)/N - 1
// (docs/invariants.md, expert-exchange). N is 1, 2, 4 or 8.

#include <cstdint>

namespace foredraft {

inline constexpr int kExpertSliceCount = 8;

struct ExpertShard {
  int rank = 0;
  int size = 1;

  // Slice g holds experts [gE/8, (g+1)E/8), so rank r holds [rE/N, (r+1)E/N). With few experts, some slices
  // are empty.
  int first_expert(int expert_count) const { return Border(rank, expert_count); }
  int expert_count_here(int expert_count) const {
    return Border(rank + 1, expert_count) - Border(rank, expert_count);
  }
  bool Holds(int expert, int expert_count) const {
    return expert >= Border(rank, expert_count) && expert < Border(rank + 1, expert_count);
  }
  int slice_count() const { return kExpertSliceCount / size; }
  int first_slice() const { return rank * slice_count(); }

 private:
  int Border(int border_rank, int expert_count) const {
    return static_cast<int>(int64_t{border_rank} * expert_count / size);
  }
};

}  // namespace foredraft
