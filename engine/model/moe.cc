#include "engine/model/moe.h"

#include <algorithm>

#include "base/check.h"
#include "engine/model/dense_mlp.h"
#include "engine/model/expert_exchange.h"

namespace foredraft {
namespace {

// The experts' choice of each row.
RoutedRows Route(const Ops& ops, Stream& stream, const ModelConfig& config, const MoeWeights& w,
                 const Activations& a, GemmForm form, const RowIndex& index, const InputRows& x) {
  const Matrix<float> logits = a.router_logits.first_rows(x.rows());
  ops.gemm(stream, {.out = logits, .x = x.as_bf16, .weight = w.router, .form = form});
  ops.route_experts(stream, {.expert_ids = a.expert_ids,
                             .expert_weights = a.expert_weights,
                             .logits = logits,
                             .bias = w.e_score_correction_bias,
                             .index = index,
                             .n_group = config.n_group,
                             .topk_group = config.topk_group,
                             .top_k = config.num_experts_per_tok,
                             .norm_topk_prob = config.norm_topk_prob,
                             .routed_scaling_factor = static_cast<float>(config.routed_scaling_factor)});
  return {.x = x, .ids = a.expert_ids, .weights = a.expert_weights};
}

// This rank's experts over the rows that chose them: a.expert_out, with the places in a.grouped_index.
void RunExperts(const Ops& ops, Stream& stream, const ModelConfig& config, const MoeWeights& w,
                const Activations& a, const ExpertShard& shard, const RoutedRows& rows) {
  const int pairs = rows.x.rows() * config.num_experts_per_tok;  // at most
  const int expert_count = shard.expert_count_here(config.n_routed_experts);
  const Matrix<float> gate_up = a.expert_gate_up.first_rows(pairs);
  const InputRows activated = a.expert_activated.first_rows(pairs).For(w.expert_down.first);
  // Gate and up go straight into the activation where the backend has that.
  const PackedWeight& expert = w.expert_gate_up.first;
  const bool fused = activated.as_f8 && expert.dtype == DType::kF8E4M3 && expert.k % kQuantGroup == 0 &&
                     expert.n / 2 % kQuantGroup == 0;
  CHECK_EQ(w.expert_gate_up.count, expert_count) << "rank " << shard.rank << " of " << shard.size;
  ops.group_rows(stream, {.expert_offsets = a.expert_offsets,
                          .grouped_rows = a.grouped_rows,
                          .grouped_index = a.grouped_index,
                          .expert_ids = rows.ids,
                          .rows = rows.x.rows(),
                          .top_k = config.num_experts_per_tok,
                          .expert_count = expert_count,
                          .first_expert = shard.first_expert(config.n_routed_experts)});
  ops.grouped_gemm(stream, {.out = fused ? Matrix<float>{} : gate_up,
                            .silu_f8 = fused ? activated.as_f8 : QuantizedRows{},
                            .x = rows.x.as_bf16,
                            .x_f8 = rows.x.as_f8,
                            .x_rows = a.grouped_rows,
                            .expert_offsets = a.expert_offsets,
                            .experts = w.expert_gate_up});
  if (!fused) {
    ops.silu_mul(stream, {.out = activated.as_bf16,
                          .out_f8 = activated.as_f8,
                          .gate_up = gate_up,
                          .row_count = a.expert_offsets + expert_count});
  }
  ops.grouped_gemm(stream, {.out = a.expert_out.first_rows(pairs),
                            .x = activated.as_bf16,
                            .x_f8 = activated.as_f8,
                            .expert_offsets = a.expert_offsets,
                            .experts = w.expert_down});
}

}  // namespace

void MixtureOfExperts(const Ops& ops, Stream& stream, Communicator& comm, const ModelConfig& config,
                      const MoeWeights& w, const Activations& a, const Batch& batch, const InputRows& x,
                      Matrix<float> hidden) {
  const RankRows rank_rows =
      batch.rank_rows != nullptr ? *batch.rank_rows : RankRows::Uniform(comm.size(), x.rows());
  const int rows_at_once = MoeRowsAtOnce(comm.size());
  for (int first = 0; first < rank_rows.largest(); first += rows_at_once) {
    RankRows round;
    for (int rank = 0; rank < comm.size(); ++rank) {
      round[rank] = std::clamp(rank_rows[rank] - first, 0, rows_at_once);
    }
    const int own_first = std::min(first, x.rows());
    const int own_count = round[comm.rank()];
    const InputRows own_x = x.row_range(own_first, own_count);
    const RowIndex index = {.slots = batch.index.slots + own_first,
                            .positions = batch.index.positions + own_first,
                            .rows = own_count};
    const ExpertExchange exchange(ops, stream, comm, config, a, round);

    // The shared expert beside the routed ones: they share nothing but x.
    Stream& beside = stream.Fork();
    Matrix<float> shared;
    if (w.shared.gate_up) {
      shared = a.projected.first_rows(own_count);
      DenseMlp(ops, beside, w.shared, a, batch.gemm_form(), own_x, shared);
    }
    const RoutedRows own = Route(ops, stream, config, w, a, batch.gemm_form(), index, own_x);
    const RoutedRows gathered = exchange.Gather(own);
    RunExperts(ops, stream, config, w, a, exchange.shard(), gathered);
    stream.Join();
    exchange.Combine(own, gathered, shared, hidden.row_range(own_first, own_count));
  }
}

}  // namespace foredraft
