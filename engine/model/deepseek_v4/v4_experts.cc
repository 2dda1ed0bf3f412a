#include "engine/model/deepseek_v4/v4_experts.h"

#include "base/check.h"

namespace foredraft {
namespace {

// Chooses the experts of a round's rows x.
RoutedRows Route(const V4Forward& f, const V4MoeWeights& w, const MoeRound& round, Matrix<bf16> x) {
  const ExpertActivations& a = f.activations.experts;
  const Matrix<float> logits = a.router_logits.first_rows(x.rows);
  f.Linear(logits, x, w.router);
  f.ops.route_softplus(f.stream,
                       {.expert_ids = a.expert_ids,
                        .expert_weights = a.expert_weights,
                        .logits = logits,
                        .bias = w.bias,
                        .expert_table = w.tid2eid,
                        .ids = f.batch.ids + round.own_first,
                        .index = {.slots = f.batch.index.slots + round.own_first,
                                  .positions = f.batch.index.positions + round.own_first,
                                  .rows = round.own_count},
                        .vocab_size = f.config.vocab_size,
                        .top_k = f.config.num_experts_per_tok,
                        .routed_scaling_factor = static_cast<float>(f.config.routed_scaling_factor)});
  return {.x = {.as_bf16 = x}, .ids = a.expert_ids, .weights = a.expert_weights};
}

// Runs this rank's experts over the rows that chose them, into experts.out.
void RunExperts(const V4Forward& f, const V4MoeWeights& w, const ExpertShard& shard, const RoutedRows& rows) {
  const ExpertActivations& a = f.activations.experts;
  const int pairs = rows.x.rows() * f.config.num_experts_per_tok;  // upper bound
  const int expected_pairs = (pairs + shard.size - 1) / shard.size;
  const int expert_count = shard.expert_count_here(f.config.n_routed_experts);
  const Matrix<float> gate_up = a.gate_up.first_rows(pairs);
  const Matrix<bf16> activated = a.activated.as_bf16.first_rows(pairs);
  CHECK_EQ(w.expert_gate_up.count, expert_count) << "rank " << shard.rank << " of " << shard.size;
  f.ops.group_rows(f.stream, {.expert_offsets = a.expert_offsets,
                              .grouped_rows = a.grouped_rows,
                              .grouped_index = a.grouped_index,
                              .expert_ids = rows.ids,
                              .rows = rows.x.rows(),
                              .top_k = f.config.num_experts_per_tok,
                              .expert_count = expert_count,
                              .first_expert = shard.first_expert(f.config.n_routed_experts)});
  f.ops.grouped_gemm(f.stream, {.out = gate_up,
                                .x = rows.x.as_bf16,
                                .x_rows = a.grouped_rows,
                                .expert_offsets = a.expert_offsets,
                                .experts = w.expert_gate_up,
                                .expected_rows = expected_pairs});
  f.ops.clamped_silu_mul(f.stream, {.out = activated,
                                    .gate_up = gate_up,
                                    .row_count = a.expert_offsets + expert_count,
                                    .limit = static_cast<float>(f.shape().swiglu_limit)});
  f.ops.grouped_gemm(f.stream, {.out = a.out.first_rows(pairs),
                                .x = activated,
                                .expert_offsets = a.expert_offsets,
                                .experts = w.expert_down,
                                .expected_rows = expected_pairs});
}

// a.projected.
void RunSharedExpert(const V4Forward& f, const DenseMlpWeights& w) {
  const V4Activations& a = f.activations;
  const Matrix<float> gate_up = a.shared_gate_up.first_rows(f.rows());
  const Matrix<bf16> activated = a.shared_activated.first_rows(f.rows());
  f.Linear(gate_up, a.normed.first_rows(f.rows()), w.gate_up);
  f.ops.clamped_silu_mul(f.stream, {.out = activated,
                                    .gate_up = gate_up,
                                    .row_count = nullptr,
                                    .limit = static_cast<float>(f.shape().swiglu_limit)});
  f.Linear(a.projected.first_rows(f.rows()), activated, w.down);
}

}  // namespace

void V4Experts(const V4Forward& f, const V4MoeWeights& w) {
  const V4Activations& a = f.activations;
  RunSharedExpert(f, w.shared);
  ForEachMoeRound(f.comm, f.batch, [&](const MoeRound& round) {
    const ExpertExchange exchange(f.experts(), round.rows);
    const RoutedRows own = Route(f, w, round, a.normed.row_range(round.own_first, round.own_count));
    const RoutedRows gathered = exchange.Gather(own);
    RunExperts(f, w, exchange.shard(), gathered);
    exchange.Combine(own, gathered, {}, a.projected.row_range(round.own_first, round.own_count));
  });
}

}  // namespace foredraft
