#pragma once

// What the ranks of a tensor group compute together (docs/invariants.md, tensor-group): sums over a
// weight's inputs and the head's logits. Each function gives every rank of the group the same rows, equal bit
// for bit to those of one rank that has the whole weight. Exchanges move rows; only tree_sum adds. Where the
// group is one rank nothing is exchanged.
//
// The group with the most rows decides the number of exchanges (Batch::rank_rows), so the ranks of all groups
// stay in step: a group without rows takes part in empty exchanges.

#include <initializer_list>

#include "engine/comm/rank_rows.h"
#include "engine/model/forward.h"
#include "engine/model/input_rows.h"

namespace foredraft {

// p.out = x p.weight^T + bias, for a weight that may be cut along its inputs.
void SummedLinear(const Forward& f, const InputRows& x, const GemmParams& p);

// Rows that are whole, or partial sums of the group's ranks. A reader adds the partial sums by the tree, and
// then the bias, as tree_sum does.
struct RowsOrParts {
  Matrix<const float> rows;     // [parts * R, n]
  int parts = 1;                // 1: whole, bias included
  const float* bias = nullptr;  // to be added after several parts; or null
};

// SummedLinear for a reader that comes next and can add parts itself: few rows are returned as the parts
// received in one exchange. p.out has the sum only if the result has one part.
RowsOrParts SummedLinearInParts(const Forward& f, const InputRows& x, const GemmParams& p);

// Whether the rank has only some inputs of the weight, so that its products are partial sums.
constexpr bool IsCut(const PackedWeight& weight) { return weight.plan_k() > weight.k; }

// Adds rows of which every rank of the group has partial sums. Up to kOneStepRows rows, every rank gets the
// parts of all rows and adds them. With more rows, each rank adds its share of the rows, and then all ranks
// get all sums: fewer bytes, in two steps. At most MoeRowsAtOnce rows; f outlives this.
class GroupRows {
 public:
  // most_rows: the rows of the group that has the most.
  GroupRows(const Forward& f, int rows, int most_rows);

  // The rows that this rank adds.
  IndexRange own() const { return own_; }
  // part.in has this rank's parts of all rows. Afterwards row i * own().count + r of part.out is rank i's
  // part of row own().first + r.
  void Exchange(std::initializer_list<GatherPart> parts) const;
  // sums: [all rows], dense. Before the call the rank has the sums of its own rows, afterwards of all rows.
  void Share(Matrix<float> sums) const;

 private:
  const Forward& f_;
  const RankSet set_;
  const bool one_step_;
  const RankRows rows_;  // the rows that each rank adds
  const int most_rows_;  // the most rows that a rank of any group adds
  const IndexRange own_;
};

// logits = x head^T, for a head whose rows are spread over the group. logits: [R, V].
void HeadLinear(const Forward& f, const InputRows& x, const PackedWeight& head, Matrix<float> logits);

}  // namespace foredraft
