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
  const Matrix<bf16> normed = a.normed.first_rows(rows);

  ops.rms_norm(stream, {.out_bf16 = normed, .x = hidden, .weight = w.input_layernorm, .eps = eps});
  LatentAttention(ops, stream, config, w.self_attn, a, batch, context, normed, hidden);
  ops.rms_norm(stream, {.out_bf16 = normed, .x = hidden, .weight = w.post_attention_layernorm, .eps = eps});
  if (w.is_moe) {
    MixtureOfExperts(ops, stream, comm, config, w.moe, a, batch, normed, hidden);
  } else {
    const Matrix<float> projected = a.projected.first_rows(rows);
    DenseMlp(ops, stream, w.mlp, a, batch.gemm_form(), normed, projected);
    ops.add(stream, {.out = hidden, .x = projected});
  }
}

}  // namespace foredraft
