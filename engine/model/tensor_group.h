#pragma once

// What the ranks of a tensor group compute together (docs/invariants.md, tensor-group): sums over a
// weight's inputs and the head's logits. Each function gives every rank of the group the same rows, with the
// bits of one rank that has the whole weight. Exchanges move rows; only tree_sum adds. Where the group is one
// rank nothing is exchanged.
//
// The number of exchanges follows from the rows of the group that has the most (Batch::rank_rows), so the
// ranks of all groups stay in step: a group without rows takes part with empty ones.

#include <initializer_list>

#include "engine/comm/rank_rows.h"
#include "engine/model/forward.h"
#include "engine/model/input_rows.h"

namespace foredraft {

// p.out = x p.weight^T + bias, of a weight that may be cut along its inputs.
void SummedLinear(const Forward& f, const InputRows& x, const GemmParams& p);

// Rows that a reader finds whole, or in the parts of the group's ranks, which it adds by the tree, and then
// the bias, as tree_sum does.
struct RowsOrParts {
  Matrix<const float> rows;     // [parts * R, n]
  int parts = 1;                // 1: whole, bias included
  const float* bias = nullptr;  // of several parts; or null
};

// SummedLinear for a reader that comes next and adds parts itself: few rows stay as the parts that came in
// one exchange. p.out has the sum only where the result says so.
RowsOrParts SummedLinearInParts(const Forward& f, const InputRows& x, const GemmParams& p);

// Whether the rank has some inputs of the weight: its products are partial sums.
constexpr bool IsCut(const PackedWeight& weight) { return weight.plan_k() > weight.k; }

// Rows of the group, all of whose ranks have partial sums of them. Up to kOneStepRows rows every rank gets
// the parts of all rows and adds them. With more rows each rank adds its share of them, and then all ranks
// get all sums: fewer bytes in two steps. At most MoeRowsAtOnce rows; f outlives this.
class GroupRows {
 public:
  // most_rows: of the group that has the most now.
  GroupRows(const Forward& f, int rows, int most_rows);

  // The rows that this rank adds.
  IndexRange own() const { return own_; }
  // part.in has this rank's parts of all rows. Afterwards row i * own().count + r of part.out is what rank i
  // had of own row r.
  void Exchange(std::initializer_list<GatherPart> parts) const;
  // sums: of all rows, dense. The rank has the sums of its own rows; afterwards it has all.
  void Share(Matrix<float> sums) const;

 private:
  const Forward& f_;
  const RankSet set_;
  const bool one_step_;
  const RankRows rows_;  // that each rank adds
  const int most_rows_;  // of a rank of any group
  const IndexRange own_;
};

// logits = x head^T, of a head whose rows are spread over the group. logits: [R, V].
void HeadLinear(const Forward& f, const InputRows& x, const PackedWeight& head, Matrix<float> logits);

}  // namespace foredraft
