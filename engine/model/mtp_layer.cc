#include "engine/model/mtp_layer.h"

#include "engine/model/decoder_layer.h"

namespace foredraft {

void MtpLayer(const Ops& ops, Stream& stream, Communicator& comm, const ModelConfig& config,
              const MtpModuleWeights& w, const bf16* embed_tokens, const Activations& a, const Batch& batch,
              const AttentionContext& context, Matrix<const float> previous, Matrix<float> output) {
  const int rows = batch.index.rows;
  const int width = config.hidden_size;
  const float eps = static_cast<float>(config.rms_norm_eps);
  const Matrix<float> hidden = a.hidden.first_rows(rows);
  const Matrix<float> embedded = a.embedded.first_rows(rows);
  const Matrix<bf16> input = a.mtp_input.first_rows(rows);

  ops.embed(stream,
            {.out = embedded, .table = embed_tokens, .ids = batch.ids, .vocab_size = config.vocab_size});
  // The embedding half comes first.
  ops.rms_norm(stream, {.out_bf16 = input.columns(0, width), .x = embedded, .weight = w.enorm, .eps = eps});
  ops.rms_norm(stream,
               {.out_bf16 = input.columns(width, width), .x = previous, .weight = w.hnorm, .eps = eps});
  ops.gemm(stream, {.out = hidden, .x = input, .weight = w.eh_proj, .form = batch.gemm_form()});
  DecoderLayer(ops, stream, comm, config, w.layer, a, batch, context);
  ops.rms_norm(stream, {.out = output, .x = hidden, .weight = w.shared_head_norm, .eps = eps});
}

}  // namespace foredraft
