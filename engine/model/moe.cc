#include "engine/model/moe.h"

#include "base/check.h"
#include "engine/model/dense_mlp.h"
#include "engine/model/expert_exchange.h"

namespace foredraft {
namespace {

// Chooses the experts of each row.
RoutedRows Route(const Forward& f, const MoeWeights& w, const RowIndex& index, const InputRows& x) {
  const ExpertActivations& a = f.activations.experts;
  const Matrix<float> logits = a.router_logits.first_rows(x.rows());
  Linear(f, x, {.out = logits, .weight = w.router});
  f.ops.route_experts(f.stream,
                      {.expert_ids = a.expert_ids,
                       .expert_weights = a.expert_weights,
                       .logits = logits,
                       .bias = w.e_score_correction_bias,
                       .index = index,
                       .n_group = f.config.n_group,
                       .topk_group = f.config.topk_group,
                       .top_k = f.config.num_experts_per_tok,
                       .norm_topk_prob = f.config.norm_topk_prob,
                       .routed_scaling_factor = static_cast<float>(f.config.routed_scaling_factor)});
  return {.x = x, .ids = a.expert_ids, .weights = a.expert_weights};
}

// Runs this rank's experts over the rows that chose them, into a.out. a.grouped_index has, for every
// row and choice, the row of a.out.
void RunExperts(const Forward& f, const MoeWeights& w, const ExpertShard& shard, const RoutedRows& rows) {
  const ExpertActivations& a = f.activations.experts;
  const int pairs = rows.x.rows() * f.config.num_experts_per_tok;  // upper bound
  const int expected_pairs = (pairs + shard.size - 1) / shard.size;
  const int expert_count = shard.expert_count_here(f.config.n_routed_experts);
  const InputRows activated = a.activated.first_rows(pairs).ReadBy({w.expert_down.first});
  CHECK_EQ(w.expert_gate_up.count, expert_count) << "rank " << shard.rank << " of " << shard.size;
  f.ops.group_rows(f.stream, {.expert_offsets = a.expert_offsets,
                              .grouped_rows = a.grouped_rows,
                              .grouped_index = a.grouped_index,
                              .expert_ids = rows.ids,
                              .rows = rows.x.rows(),
                              .top_k = f.config.num_experts_per_tok,
                              .expert_count = expert_count,
                              .first_expert = shard.first_expert(f.config.n_routed_experts)});
  GroupedGateUp(f, rows.x, activated,
                {.out = a.gate_up.first_rows(pairs),
                 .x_rows = a.grouped_rows,
                 .expert_offsets = a.expert_offsets,
                 .experts = w.expert_gate_up,
                 .expected_rows = expected_pairs});
  GroupedLinear(f, activated,
                {.out = a.out.first_rows(pairs),
                 .expert_offsets = a.expert_offsets,
                 .experts = w.expert_down,
                 .expected_rows = expected_pairs});
}

}  // namespace

void MixtureOfExperts(const Forward& f, const MoeWeights& w, const InputRows& x, Matrix<float> hidden) {
  const Batch& batch = f.batch;
  ForEachMoeRound(f.comm, batch, [&](const MoeRound& round) {
    const InputRows own_x = x.row_range(round.own_first, round.own_count);
    const RowIndex index = {.slots = batch.index.slots + round.own_first,
                            .positions = batch.index.positions + round.own_first,
                            .rows = round.own_count};
    const ExpertExchange exchange(f.experts(), round.rows);

    // The shared expert runs on a side stream: it and the routed experts have only x in common.
    Stream& side = f.stream.Fork();
    Matrix<float> shared;
    if (w.shared.gate_up) {
      shared = f.activations.projected.first_rows(round.own_count);
      DenseMlp(f.On(side), w.shared, own_x, shared);
    }
    const RoutedRows own = Route(f, w, index, own_x);
    const RoutedRows gathered = exchange.Gather(own);
    RunExperts(f, w, exchange.shard(), gathered);
    f.stream.Join();
    exchange.Combine(own, gathered, shared, hidden.row_range(round.own_first, round.own_count));
  });
}

}  // namespace foredraft
