#include "engine/model/deepseek_v3/decoder_layer.h"

#include "engine/model/dense_mlp.h"
#include "engine/model/moe.h"

namespace foredraft {

void DecoderLayer(const Forward& f, const LayerWeights& w, const AttentionContext& context) {
  const Matrix<float> hidden = f.activations.hidden.first_rows(f.rows());
  const Matrix<float> projected = f.activations.projected.first_rows(f.rows());
  const InputRows buffer = f.activations.normed.first_rows(f.rows());

  const InputRows attended = buffer.ReadBy({w.self_attn.qkv_a});
  RmsNorm(f, attended, {.x = hidden, .weight = w.input_layernorm, .eps = f.norm_eps()});
  LatentAttention(f, w.self_attn, context, attended, projected);

  const InputRows normed =
      w.is_moe ? buffer.ReadBy({w.moe.router, w.moe.expert_gate_up.first, w.moe.shared.gate_up})
               : buffer.ReadBy({w.mlp.gate_up});
  RmsNorm(f, normed,
          {.sum = hidden,
           .x = hidden,
           .residual = projected,
           .weight = w.post_attention_layernorm,
           .eps = f.norm_eps()});
  if (w.is_moe) {
    MixtureOfExperts(f, w.moe, normed, hidden);
  } else {
    DenseMlp(f, w.mlp, normed, projected);
    f.ops.add(f.stream, {.out = hidden, .x = projected});
  }
}

}  // namespace foredraft
