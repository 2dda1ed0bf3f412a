#include "engine/model/deepseek_v3/mtp_layer.h"

#include "engine/model/deepseek_v3/decoder_layer.h"

namespace foredraft {

void MtpLayer(const Forward& f, const MtpModuleWeights& w, const bf16* embed_tokens,
              const AttentionContext& context, Matrix<float> output) {
  const Activations& a = f.activations;
  const int width = f.config.hidden_size;
  const float eps = f.norm_eps();
  const Matrix<float> hidden = a.hidden.first_rows(f.rows());
  const Matrix<float> embedded = a.embedded.first_rows(f.rows());
  const Matrix<bf16> input = a.mtp_input.first_rows(f.rows());
  const Matrix<bf16> embedding_half = input.columns(0, width);
  const Matrix<bf16> previous_half = input.columns(width, width);

  f.ops.embed(
      f.stream,
      {.out = embedded, .table = embed_tokens, .ids = f.batch.ids, .vocab_size = f.config.vocab_size});
  f.ops.rms_norm(f.stream, {.out_bf16 = embedding_half, .x = embedded, .weight = w.enorm, .eps = eps});
  f.ops.rms_norm(f.stream, {.out_bf16 = previous_half, .x = f.batch.previous, .weight = w.hnorm, .eps = eps});
  Linear(f, {.as_bf16 = input}, {.out = hidden, .weight = w.eh_proj});
  DecoderLayer(f, w.layer, context);
  f.ops.rms_norm(f.stream, {.out = output, .x = hidden, .weight = w.shared_head_norm, .eps = eps});
}

}  // namespace foredraft
