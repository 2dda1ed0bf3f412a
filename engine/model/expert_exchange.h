#pragma once

// Brings rows to experts that are spread over ranks (docs/invariants.md, expert-exchange): every rank gets
// the rows of all with their choices, runs the experts it has, and sends each row's partial sum back to the
// row's owner, who adds the sums in the canonical order. The ranks of a tensor group have the same rows: they
// exchange the sums alone. With one rank nothing is exchanged.

#include <optional>

#include "engine/comm/rank_rows.h"
#include "engine/model/forward.h"
#include "engine/model/tensor_group.h"

namespace foredraft {

// Rows, of one rank or of all, and the experts they chose.
struct RoutedRows {
  InputRows x;                     // [rows, D] in the form that the experts read
  const int32_t* ids = nullptr;    // [rows, X], -1 = idle
  const float* weights = nullptr;  // [rows, X]
  // The part of the rows that is worked on, as in GroupRowsParams; null: all.
  const int32_t* row_range = nullptr;
};

// What the shared expert gave.
struct SharedRows {
  Matrix<const float> added;  // [rows, D]: added to hidden beside the routed experts; or absent
  // The rank has a part of the expert: its partial sums are in the activations group.partials_out.
  bool in_parts = false;
  Matrix<float> sums;  // of the group's parts, where they are not added to hidden; or absent
};

class ExpertExchange {
 public:
  // `round_rows`: of every tensor group in this round (engine/model/mlp.h). f outlives this.
  ExpertExchange(const Forward& f, const RankRows& round_rows) : f_(f), round_rows_(round_rows) {}

  // The rows of all groups, one group after another. `own` may be empty. Rows that are quantised cross the
  // ranks so: about half the bytes of BF16. Where the experts have one scale of `inputs`, rows are rounded to
  // NVFP4 by it, whichever rank they come from, and cross in 0.281 of the bytes.
  RoutedRows Gather(const RoutedRows& own, const InputScales& inputs) const;

  // `part` has the activated pairs, in the columns of this rank's experts that this rank has. Gathers the
  // parts of all ranks that share the experts side by side into whole rows, `whole`. Both are in the form
  // that expert_down reads.
  void GatherColumns(const InputRows& part, const InputRows& whole) const;

  // Adds up, for each row of a part of the gathered rows, what this rank's experts gave it: the activations
  // out and grouped_index hold that. Where one rank has all experts, Combine adds it up.
  void SumExperts(const RoutedRows& part) const;

  // hidden[r] += shared.added[r] + what the experts of all ranks gave row r of `own`, of `gathered_rows` in
  // all. With `leaves`, what came from other ranks is returned, to be added later: until then the activations
  // keep it. A tensor group, whose ranks may each add some rows, leaves nothing.
  std::optional<AddPartialsParams> Combine(const RoutedRows& own, int gathered_rows, const SharedRows& shared,
                                           Matrix<float> hidden, bool leaves) const;

 private:
  // Gather's rows in each form: this rank's part of the exchange, and in `all` what arrives.
  GatherPart Bf16Part(Matrix<bf16> own, InputRows& all) const;
  GatherPart QuantizedPart(const QuantizedRows& own, InputRows& all) const;
  GatherPart Nvfp4Part(Matrix<bf16> own, const InputScales& inputs, InputRows& all) const;
  // What SumExperts fills where experts are spread: this rank's part of every row.
  struct PartialRows {
    Matrix<float> rows;      // or
    Matrix<bf16> rows_bf16;  // where every rank has one slice: its sum is a BF16 value, half the bytes
    GatherPart exchanged;    // the same, as it crosses the ranks
  };
  PartialRows Partials(int gathered_rows) const;
  // Sends each row's part to the row's owner of equal place, which then has the parts of all its peers.
  void ToOwners(const GatherPart& partials) const;
  // Owners add these parts, and what is left is added among the ranks of the group.
  GatherPart SubtreeOfOwners(const RoutedRows& own, const GatherPart& partials) const;
  void SumOfGroup(const RoutedRows& own, const GatherPart& partials, const SharedRows& shared,
                  Matrix<float> hidden) const;
  // What came in, as partial sums of whole rows, `parts` of each: columns of ranks that share experts are put
  // side by side.
  Matrix<const float> WholePartials(int rows, int parts) const;
  // Adds what came in, `parts` of each row, to these rows of hidden, and with it `shared`, of the same rows.
  AddPartialsParams PartialsToAdd(const RoutedRows& own, const IndexRange& rows, int parts,
                                  const RowsOrParts& shared, Matrix<float> hidden) const;

  // The ranks of equal place in all groups, with their rows.
  RankSet peers() const;
  RankRows peer_rows() const;

  const Forward& f_;
  const RankRows round_rows_;
};

}  // namespace foredraft
