#include "engine/model/v4_experts.h"

namespace foredraft {
namespace {

void Route(const V4Forward& f, const V4MoeWeights& w) {
  const V4Activations& a = f.activations;
  const Matrix<float> logits = a.router_logits.first_rows(f.rows());
  f.Linear(logits, a.normed.first_rows(f.rows()), w.router);
  f.ops.v4.route_softplus(f.stream,
                          {.expert_ids = a.expert_ids,
                           .expert_weights = a.expert_weights,
                           .logits = logits,
                           .bias = w.bias,
                           .expert_table = w.tid2eid,
                           .ids = f.batch.ids,
                           .index = f.batch.index,
                           .vocab_size = f.config.vocab_size,
                           .top_k = f.config.num_experts_per_tok,
                           .routed_scaling_factor = static_cast<float>(f.config.routed_scaling_factor)});
  f.ops.group_rows(f.stream, {.expert_offsets = a.expert_offsets,
                              .grouped_rows = a.grouped_rows,
                              .grouped_index = a.grouped_index,
                              .expert_ids = a.expert_ids,
                              .rows = f.rows(),
                              .top_k = f.config.num_experts_per_tok,
                              .expert_count = f.config.n_routed_experts});
}

// a.expert_out of the pairs of row and choice.
void RunExperts(const V4Forward& f, const V4MoeWeights& w) {
  const V4Activations& a = f.activations;
  const int pairs = f.rows() * f.config.num_experts_per_tok;
  const Matrix<float> gate_up = a.gate_up.first_rows(pairs);
  const Matrix<bf16> activated = a.activated.first_rows(pairs);
  f.ops.grouped_gemm(f.stream, {.out = gate_up,
                                .x = a.normed.first_rows(f.rows()),
                                .x_rows = a.grouped_rows,
                                .expert_offsets = a.expert_offsets,
                                .experts = w.expert_gate_up});
  f.ops.v4.clamped_silu_mul(f.stream, {.out = activated,
                                       .gate_up = gate_up,
                                       .row_count = a.expert_offsets + f.config.n_routed_experts,
                                       .limit = static_cast<float>(f.shape().swiglu_limit)});
  f.ops.grouped_gemm(f.stream, {.out = a.expert_out.first_rows(pairs),
                                .x = activated,
                                .expert_offsets = a.expert_offsets,
                                .experts = w.expert_down});
}

// a.projected.
void RunSharedExpert(const V4Forward& f, const DenseMlpWeights& w) {
  const V4Activations& a = f.activations;
  const Matrix<float> gate_up = a.gate_up.first_rows(f.rows());
  const Matrix<bf16> activated = a.activated.first_rows(f.rows());
  f.Linear(gate_up, a.normed.first_rows(f.rows()), w.gate_up);
  f.ops.v4.clamped_silu_mul(f.stream, {.out = activated,
                                       .gate_up = gate_up,
                                       .row_count = nullptr,
                                       .limit = static_cast<float>(f.shape().swiglu_limit)});
  f.Linear(a.projected.first_rows(f.rows()), activated, w.down);
}

}  // namespace

void V4Experts(const V4Forward& f, const V4MoeWeights& w) {
  const V4Activations& a = f.activations;
  Route(f, w);
  RunExperts(f, w);
  RunSharedExpert(f, w.shared);
  f.ops.combine_experts(f.stream,
                        {.hidden = a.projected.first_rows(f.rows()),
                         .expert_out = a.expert_out.first_rows(f.rows() * f.config.num_experts_per_tok),
                         .grouped_index = a.grouped_index,
                         .expert_ids = a.expert_ids,
                         .expert_weights = a.expert_weights,
                         .top_k = f.config.num_experts_per_tok,
                         .expert_count = f.config.n_routed_experts});
}

}  // namespace foredraft
