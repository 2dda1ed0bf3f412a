#ifndef FOREDRAFT_ENGINE_MODEL_EXPERT_EXCHANGE_H_
#define FOREDRAFT_ENGINE_MODEL_EXPERT_EXCHANGE_H_

// How rows meet experts that are spread over ranks (engine/README.md, expert-exchange): every rank gets the
// rows of all, with their choices, runs the experts it has, and sends each row's partial sum back to its
// owner, who adds them in the canonical order. A rank alone does none of it: its rows are all the rows.

#include "config/model_config.h"
#include "engine/comm/communicator.h"
#include "engine/model/activations.h"
#include "engine/weights/expert_shard.h"
#include "kernels/ops.h"

namespace foredraft {

// Rows, of one rank or of all, and the experts they chose.
struct RoutedRows {
  InputRows x;                     // [rows, D]; of all ranks BF16 alone
  const int32_t* ids = nullptr;    // [rows, X], -1 = idle
  const float* weights = nullptr;  // [rows, X]
};

// One round: at most MoeRowsAtOnce rows of every rank.
class ExpertExchange {
 public:
  // `rank_rows`: of this round. All referents outlive the exchange.
  ExpertExchange(const Ops& ops, Stream& stream, Communicator& comm, const ModelConfig& config,
                 const Activations& activations, const RankRows& rank_rows)
      : ops_(ops), stream_(stream), comm_(comm), config_(config), a_(activations), rank_rows_(rank_rows) {}

  // The experts of this rank.
  ExpertShard shard() const { return {.rank = comm_.rank(), .size = comm_.size()}; }

  // The rows of all ranks, one rank after another. `own` may be empty.
  RoutedRows Gather(const RoutedRows& own) const;

  // hidden[r] += shared[r] + what the experts of all ranks gave row r of `own`. a.expert_out and
  // a.grouped_index hold what this rank's experts gave the gathered rows. `shared` may be absent.
  void Combine(const RoutedRows& own, const RoutedRows& gathered, Matrix<const float> shared,
               Matrix<float> hidden) const;

 private:
  const Ops& ops_;
  Stream& stream_;
  Communicator& comm_;
  const ModelConfig& config_;
  const Activations& a_;
  const RankRows rank_rows_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_EXPERT_EXCHANGE_H_
