#include "engine/model/deepseek_v3/v3_layer.h"

#include "engine/model/mlp.h"

namespace foredraft {
namespace {

void RouteBySigmoid(const Forward& f, const MoeWeights& w, const ScoredRows& rows) {
  const ExpertActivations& a = f.activations.experts;
  f.ops.route_experts(f.stream,
                      {.expert_ids = a.expert_ids,
                       .expert_weights = a.expert_weights,
                       .logits = rows.logits,
                       .bias = w.bias,
                       .index = rows.index,
                       .n_group = f.config.n_group,
                       .topk_group = f.config.topk_group,
                       .top_k = f.config.num_experts_per_tok,
                       .norm_topk_prob = f.config.norm_topk_prob,
                       .routed_scaling_factor = static_cast<float>(f.config.routed_scaling_factor)});
}

// A layer without an indexer attends the positions that the nearest layer below with an indexer selected.
RowsOrParts Attention(const Forward& f, const V3LayerWeights& w, const V3LayerContext& context,
                      const LeftToAdd& before, const InputRows& buffer) {
  const bool selects = context.indexer.activations != nullptr && w.indexer;
  AttentionContext attention = context.attention;
  if (selects) attention.q_a_reader = w.indexer.wq_b;
  const InputRows normed =
      buffer.ReadBy({w.self_attn.qkv_a, selects ? w.indexer.wk_weights : PackedWeight{}});
  RmsNormOfHidden(f, before, RmsNormTo(normed, {.weight = w.input_layernorm, .eps = f.norm_eps()}));
  if (context.reader_below != nullptr) {
    context.reader_below->Read(f.stream, context.index - 1, f.activations.hidden.first_rows(f.rows()));
  }
  const InputRows queries = ProjectLatents(f, w.self_attn, attention, normed);
  if (selects) SelectPositions(f, w.indexer, context.indexer, attention, {normed, queries});
  return AttendLatents(f, w.self_attn, attention, f.activations.projected.first_rows(f.rows()));
}

}  // namespace

LeftToAdd V3Layer(const Forward& f, const V3LayerWeights& w, const V3LayerContext& context,
                  const LeftToAdd& before) {
  const Matrix<float> hidden = f.activations.hidden.first_rows(f.rows());
  const InputRows buffer = f.activations.normed.first_rows(f.rows());

  const RowsOrParts attended = Attention(f, w, context, before, buffer);

  const InputRows normed =
      w.is_moe ? buffer.ReadBy({w.moe.router, w.moe.expert_gate_up.first, w.moe.shared.gate_up})
               : buffer.ReadBy({w.mlp.gate_up});
  RmsNorm(f, normed,
          {.sum = hidden,
           .x = hidden,
           .residual = attended.rows,
           .weight = w.post_attention_layernorm,
           .eps = f.norm_eps(),
           .residual_parts = attended.parts,
           .residual_bias = attended.bias});
  if (w.is_moe) {
    return MixtureOfExperts(f, w.moe, {.route = RouteBySigmoid, .leaves_sum = true}, normed, hidden);
  }
  const Matrix<float> projected = f.activations.projected.first_rows(f.rows());
  DenseMlp(f, w.mlp, {}, normed, projected);
  return {.rows = projected};
}

void V3MtpLayer(const Forward& f, const V3ModuleWeights& w, const bf16* embed_tokens,
                const V3LayerContext& context, Matrix<float> output) {
  const int width = f.config.hidden_size;
  const float eps = f.norm_eps();
  const Matrix<float> hidden = f.activations.hidden.first_rows(f.rows());
  const InputRows input = f.activations.mtp_input.first_rows(f.rows());
  const Matrix<bf16> embedding_half = input.as_bf16.columns(0, width);
  const Matrix<bf16> previous_half = input.as_bf16.columns(width, width);

  f.ops.embed(f.stream,
              {.out = hidden, .table = embed_tokens, .ids = f.batch.ids, .vocab_size = f.config.vocab_size});
  f.ops.rms_norm(f.stream, {.out_bf16 = embedding_half, .x = hidden, .weight = w.enorm, .eps = eps});
  f.ops.rms_norm(f.stream, {.out_bf16 = previous_half, .x = f.batch.previous, .weight = w.hnorm, .eps = eps});
  Linear(f, input, {.out = hidden, .weight = w.eh_proj});
  const LeftToAdd left = V3Layer(f, w.layer, context, {});
  RmsNormOfHidden(f, left, {.out = output, .weight = w.shared_head_norm, .eps = eps});
}

}  // namespace foredraft
