#pragma once

// Brings rows to experts that are spread over ranks (docs/invariants.md, expert-exchange): every rank gets
// the rows of all ranks with their chosen experts, runs its own experts, and sends each row's partial sum
// back to the row's owner, which adds the sums in the canonical order. Ranks of one tensor group have the
// same rows and exchange only sums. With one rank nothing is exchanged.

#include <optional>

#include "engine/comm/rank_rows.h"
#include "engine/model/forward.h"
#include "engine/model/tensor_group.h"

namespace foredraft {

// Rows, of one rank or of all ranks, and the experts chosen for them.
struct RoutedRows {
  InputRows x;                     // [rows, D] in the form that the experts read
  const int32_t* ids = nullptr;    // [rows, X], -1 = idle
  const float* weights = nullptr;  // [rows, X]
  // The range of rows to work on, as in GroupRowsParams; null: all rows.
  const int32_t* row_range = nullptr;
};

// The shared expert's outputs.
struct SharedRows {
  Matrix<const float> added;  // [rows, D]: to be added to hidden together with the routed experts; or absent
  // The rank has only a part of the expert; its partial sums are in the activations (group.partials_out).
  bool in_parts = false;
  Matrix<float> sums;  // where the sums of the group's parts go if they are not added to hidden; or absent
};

class ExpertExchange {
 public:
  // `round_rows`: every tensor group's rows in this round (engine/model/mlp.h). f outlives this.
  ExpertExchange(const Forward& f, const RankRows& round_rows) : f_(f), round_rows_(round_rows) {}

  // The rows of all groups, one group after another. `own` may be empty. Quantised rows cross the ranks
  // quantised, in about half the bytes of BF16. If all experts have the same input scale, every rank's rows
  // are rounded to NVFP4 by it and cross in 0.281 of the bytes of BF16.
  RoutedRows Gather(const RoutedRows& own, const InputScales& inputs) const;

  // `part` has the activated pairs, in this rank's columns. Gathers the columns of all ranks that share the
  // experts side by side into `whole`. Both are in the form that expert_down reads.
  void GatherColumns(const InputRows& part, const InputRows& whole) const;

  // Adds up this rank's experts' outputs for each row of a part of the gathered rows, from the activations
  // `out` and grouped_index. Where one rank has all experts, Combine does this instead.
  void SumExperts(const RoutedRows& part) const;

  // hidden[r] += shared.added[r] + the outputs of all ranks' experts for row r of `own`. gathered_rows: the
  // rows of all groups. With `leaves`, the partial sums from other ranks are returned, to be added later;
  // until then the activations hold them. A tensor group, whose ranks may each add only some rows, leaves
  // nothing.
  std::optional<AddPartialsParams> Combine(const RoutedRows& own, int gathered_rows, const SharedRows& shared,
                                           Matrix<float> hidden, bool leaves) const;

 private:
  // Return this rank's part of Gather's exchange, one function per form, and set `all` to the rows that
  // arrive.
  GatherPart Bf16Part(Matrix<bf16> own, InputRows& all) const;
  GatherPart QuantizedPart(const QuantizedRows& own, InputRows& all) const;
  GatherPart Nvfp4Part(Matrix<bf16> own, const InputScales& inputs, InputRows& all) const;
  // The partial sums of every row that SumExperts fills where experts are spread over ranks.
  struct PartialRows {
    Matrix<float> rows;      // or
    Matrix<bf16> rows_bf16;  // where every rank has one slice, whose sum is a BF16 value: half the bytes
    GatherPart exchanged;    // the same sums, as they cross the ranks
  };
  PartialRows Partials(int gathered_rows) const;
  // Sends each row's partial sum to the row's owner among peers(), which then has the sums of all its peers.
  void ToOwners(const GatherPart& partials) const;
  // With several groups of several ranks: owners add their peers' sums; the ranks of the group then add the
  // results (SumOfGroup).
  GatherPart SubtreeOfOwners(const RoutedRows& own, const GatherPart& partials) const;
  void SumOfGroup(const RoutedRows& own, const GatherPart& partials, const SharedRows& shared,
                  Matrix<float> hidden) const;
  // The received partial sums as whole rows, `parts` of each: columns of ranks that share experts are put
  // side by side.
  Matrix<const float> WholePartials(int rows, int parts) const;
  // Parameters of the op that adds the received partial sums, `parts` of each row, and `shared` to the rows
  // `rows` of hidden.
  AddPartialsParams PartialsToAdd(const RoutedRows& own, const IndexRange& rows, int parts,
                                  const RowsOrParts& shared, Matrix<float> hidden) const;

  // The ranks of equal place in all groups, with their rows.
  RankSet peers() const;
  RankRows peer_rows() const;

  const Forward& f_;
  const RankRows round_rows_;
};

}  // namespace foredraft
