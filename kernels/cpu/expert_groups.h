#ifndef FOREDRAFT_KERNELS_CPU_EXPERT_GROUPS_H_
#define FOREDRAFT_KERNELS_CPU_EXPERT_GROUPS_H_

// The canonical sums of expert outputs (CombineExpertsParams): what combine_experts does in one go, and
// expert_partials and add_partials in two, with the same bits. Always inlined, for the register width of the
// function they stand in (wide.h).

#include <cstdint>

#include "kernels/ops.h"

namespace foredraft::cpu {

inline constexpr int kExpertGroups = 8;
inline constexpr int32_t kColumnBlock = 64;  // columns summed at once, so that the sums stay in registers

// A row's chosen experts.
struct RowChoices {
  const Matrix<const float>& expert_out;  // [grouped rows, D]
  const int32_t* ids;                     // [top_k], ascending
  const int32_t* places;                  // [top_k] rows of expert_out, -1: not here
  const float* weights;                   // [top_k]
  int32_t top_k;
  int32_t expert_count;  // E
};

// groups[i] = the sum of group first_group + i over columns [first, first + count), rounded to BF16: its
// experts ascending, product and sum rounded separately (no fused multiply-add).
template <int group_count>
[[gnu::always_inline]] inline void SumGroups(const RowChoices& row, int32_t first_group, int32_t first,
                                             int32_t count, float (&groups)[group_count][kColumnBlock]) {
  int32_t choice = 0;
  const int64_t first_expert = int64_t{first_group} * row.expert_count / kExpertGroups;
  while (choice < row.top_k && row.ids[choice] < first_expert) ++choice;
  for (int64_t g = 0; g < group_count; ++g) {
    for (int32_t i = 0; i < count; ++i) groups[g][i] = 0.0f;
    const int64_t group_end = (first_group + g + 1) * row.expert_count / kExpertGroups;
    for (; choice < row.top_k && row.ids[choice] < group_end; ++choice) {
      if (row.places[choice] < 0) continue;
      const float weight = row.weights[choice];
      const float* x = row.expert_out.row(row.places[choice]) + first;
      for (int32_t i = 0; i < count; ++i) groups[g][i] += weight * x[i];
    }
    for (int32_t i = 0; i < count; ++i) groups[g][i] = ToFloat(ToBf16(groups[g][i]));
  }
}

// Column `column` of `count` adjacent groups, or of partial sums over as many equal parts of the groups,
// added by the fixed binary tree.
template <int count>
[[gnu::always_inline]] inline float AddTree(const float (*values)[kColumnBlock], int32_t column) {
  if constexpr (count == 1) {
    return values[0][column];
  } else {
    return AddTree<count / 2>(values, column) + AddTree<count / 2>(values + count / 2, column);
  }
}

}  // namespace foredraft::cpu

#endif  // FOREDRAFT_KERNELS_CPU_EXPERT_GROUPS_H_
