#include "engine/model/moe.h"

#include <algorithm>

#include "engine/model/dense_mlp.h"

namespace foredraft {
namespace {

void Piece(const Ops& ops, Stream& stream, const ModelConfig& config, const MoeWeights& w,
           const Activations& a, GemmForm form, const RowIndex& index, Matrix<const bf16> x,
           Matrix<float> hidden) {
  const int grouped = x.rows * config.num_experts_per_tok;
  const Matrix<float> logits = a.router_logits.first_rows(x.rows);
  const Matrix<float> gate_up = a.expert_gate_up.first_rows(grouped);
  const Matrix<bf16> activated = a.expert_activated.first_rows(grouped);
  const Matrix<float> expert_out = a.expert_out.first_rows(grouped);
  Matrix<float> shared;

  ops.gemm(stream, {.out = logits, .x = x, .weight = w.router, .form = form});
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
  ops.group_rows(stream, {.expert_offsets = a.expert_offsets,
                          .grouped_rows = a.grouped_rows,
                          .grouped_index = a.grouped_index,
                          .expert_ids = a.expert_ids,
                          .rows = x.rows,
                          .top_k = config.num_experts_per_tok,
                          .expert_count = config.n_routed_experts});
  ops.grouped_gemm(stream, {.out = gate_up,
                            .x = x,
                            .x_rows = a.grouped_rows,
                            .expert_offsets = a.expert_offsets,
                            .experts = w.expert_gate_up});
  ops.silu_mul(stream, {.out = activated, .gate_up = gate_up});
  ops.grouped_gemm(
      stream,
      {.out = expert_out, .x = activated, .expert_offsets = a.expert_offsets, .experts = w.expert_down});
  if (w.shared.gate_up) {
    shared = a.projected.first_rows(x.rows);
    DenseMlp(ops, stream, w.shared, a, form, x, shared);
  }
  ops.combine_experts(stream, {.hidden = hidden,
                               .expert_out = expert_out,
                               .shared = shared,
                               .grouped_index = a.grouped_index,
                               .expert_ids = a.expert_ids,
                               .expert_weights = a.expert_weights,
                               .top_k = config.num_experts_per_tok,
                               .expert_count = config.n_routed_experts});
}

}  // namespace

void MixtureOfExperts(const Ops& ops, Stream& stream, const ModelConfig& config, const MoeWeights& w,
                      const Activations& a, const Batch& batch, Matrix<const bf16> x, Matrix<float> hidden) {
  for (int first = 0; first < x.rows; first += kMoeRowsAtOnce) {
    const int count = std::min(kMoeRowsAtOnce, x.rows - first);
    const RowIndex piece = {
        .slots = batch.index.slots + first, .positions = batch.index.positions + first, .rows = count};
    Piece(ops, stream, config, w, a, batch.gemm_form(), piece, x.row_range(first, count),
          hidden.row_range(first, count));
  }
}

}  // namespace foredraft
