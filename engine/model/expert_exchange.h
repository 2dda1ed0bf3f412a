#pragma once

// Brings rows to experts that are spread over ranks (docs/architecture.md, expert-exchange): every rank gets
// the rows of all with their choices, runs the experts it has, and sends each row's partial sum back to the
// row's owner, who adds the sums in the canonical order. With one rank nothing is exchanged.

#include <algorithm>

#include "engine/checkpoint/expert_shard.h"
#include "engine/comm/communicator.h"
#include "engine/model/batch.h"
#include "engine/model/expert_activations.h"

namespace foredraft {

// Rows, of one rank or of all, and the experts they chose.
struct RoutedRows {
  InputRows x;                     // [rows, D]; of all ranks BF16 alone
  const int32_t* ids = nullptr;    // [rows, X], -1 = idle
  const float* weights = nullptr;  // [rows, X]
};

// What of a forward the experts need. All referents outlive it.
struct ExpertForward {
  const Ops& ops;
  Stream& stream;
  Communicator& comm;  // joins the ranks that the experts are spread over
  const ModelConfig& config;
  const ExpertActivations& activations;
};

// A part of a forward: at most MoeRowsAtOnce rows of every rank.
struct MoeRound {
  RankRows rows;      // of every rank
  int own_first = 0;  // of this rank's rows in the forward
  int own_count = 0;
};

// Calls run(round) for the rounds of a forward. All ranks take part in as many as the rank with the most rows
// needs.
template <class Run>
void ForEachMoeRound(const Communicator& comm, const Batch& batch, const Run& run) {
  const int ranks = comm.size();
  const RankRows rank_rows =
      batch.rank_rows != nullptr ? *batch.rank_rows : RankRows::Uniform(ranks, batch.index.rows);
  const int rows_at_once = MoeRowsAtOnce(ranks);
  for (int first = 0; first < rank_rows.largest(); first += rows_at_once) {
    MoeRound round;
    for (int rank = 0; rank < ranks; ++rank) {
      round.rows[rank] = std::clamp(rank_rows[rank] - first, 0, rows_at_once);
    }
    round.own_first = std::min(first, batch.index.rows);
    round.own_count = round.rows[comm.rank()];
    run(round);
  }
}

class ExpertExchange {
 public:
  // `round_rows`: of every rank in this round.
  ExpertExchange(const ExpertForward& f, const RankRows& round_rows) : f_(f), round_rows_(round_rows) {}

  // The experts of this rank.
  ExpertShard shard() const { return {.rank = f_.comm.rank(), .size = f_.comm.size()}; }

  // The rows of all ranks, one rank after another. `own` may be empty.
  RoutedRows Gather(const RoutedRows& own) const;

  // hidden[r] += shared[r] + what the experts of all ranks gave row r of `own`. The activations out and
  // grouped_index hold what this rank's experts gave the gathered rows. `shared` may be absent.
  void Combine(const RoutedRows& own, const RoutedRows& gathered, Matrix<const float> shared,
               Matrix<float> hidden) const;

 private:
  // Combine's second half: this rank's part of every row goes to the row's owner, who adds the parts.
  void ExchangePartials(const RoutedRows& own, const RoutedRows& gathered, Matrix<const float> shared,
                        Matrix<float> hidden) const;

  const ExpertForward f_;
  const RankRows round_rows_;
};

}  // namespace foredraft
