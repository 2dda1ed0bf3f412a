#pragma once

// Brings rows to experts that are spread over ranks (docs/architecture.md, expert-exchange): every rank gets
// the rows of all with their choices, runs the experts it has, and sends each row's partial sum back to the
// row's owner, who adds the sums in the canonical order. With one rank nothing is exchanged.

#include "engine/comm/rank_rows.h"
#include "engine/model/forward.h"

namespace foredraft {

// Rows, of one rank or of all, and the experts they chose.
struct RoutedRows {
  InputRows x;                     // [rows, D] in the form that the experts read
  const int32_t* ids = nullptr;    // [rows, X], -1 = idle
  const float* weights = nullptr;  // [rows, X]
};

class ExpertExchange {
 public:
  // `round_rows`: of every rank in this round of at most MoeRowsAtOnce rows of a rank. f outlives this.
  ExpertExchange(const Forward& f, const RankRows& round_rows) : f_(f), round_rows_(round_rows) {}

  // The rows of all ranks, one rank after another. `own` may be empty. Rows that are quantised cross the
  // ranks so: about half the bytes of BF16.
  RoutedRows Gather(const RoutedRows& own) const;

  // hidden[r] += shared[r] + what the experts of all ranks gave row r of `own`. The activations out and
  // grouped_index hold what this rank's experts gave the gathered rows. `shared` may be absent.
  void Combine(const RoutedRows& own, const RoutedRows& gathered, Matrix<const float> shared,
               Matrix<float> hidden) const;

 private:
  // Gather's rows in either form: this rank's part of the exchange, and in `all` what arrives.
  GatherPart Bf16Part(Matrix<bf16> own, InputRows& all) const;
  GatherPart QuantizedPart(const QuantizedRows& own, InputRows& all) const;
  // Combine's second half: this rank's part of every row goes to the row's owner, who adds the parts.
  void ExchangePartials(const RoutedRows& own, const RoutedRows& gathered, Matrix<const float> shared,
                        Matrix<float> hidden) const;

  const Forward& f_;
  const RankRows round_rows_;
};

}  // namespace foredraft
