#include "engine/model/decoder_layer.h"

#include "engine/model/dense_mlp.h"
#include "engine/model/moe.h"

namespace foredraft {

void DecoderLayer(const Ops& ops, Stream& stream, Communicator& comm, const ModelConfig& config,
                  const LayerWeights& w, const Activations& a, const Batch& batch,
                  const AttentionContext& context) {
  const int rows = batch.index.rows;
  const float eps = static_cast<float>(config.rms_norm_eps);
  const Matrix<float> hidden = a.hidden.first_rows(rows);
  const Matrix<float> projected = a.projected.first_rows(rows);
  // After the attention's share has been added.
  const auto add_and_norm = [&](const InputRows& normed) {
    ops.rms_norm(stream, {.out_bf16 = normed.as_bf16,
                          .out_f8 = normed.as_f8,
                          .sum = hidden,
                          .x = hidden,
                          .residual = projected,
                          .weight = w.post_attention_layernorm,
                          .eps = eps});
  };

  const InputRows attention_input = a.normed.first_rows(rows).For(w.self_attn.qkv_a);
  ops.rms_norm(stream, {.out_bf16 = attention_input.as_bf16,
                        .out_f8 = attention_input.as_f8,
                        .x = hidden,
                        .weight = w.input_layernorm,
                        .eps = eps});
  LatentAttention(ops, stream, config, w.self_attn, a, batch, context, attention_input, projected);
  if (w.is_moe) {
    // The router reads BF16 whatever the experts read.
    const InputRows normed = a.normed.first_rows(rows).BothFor(w.moe.expert_gate_up.first);
    add_and_norm(normed);
    MixtureOfExperts(ops, stream, comm, config, w.moe, a, batch, normed, hidden);
  } else {
    const InputRows normed = a.normed.first_rows(rows).For(w.mlp.gate_up);
    add_and_norm(normed);
    DenseMlp(ops, stream, w.mlp, a, batch.gemm_form(), normed, projected);
    ops.add(stream, {.out = hidden, .x = projected});
  }
}

}  // namespace foredraft
