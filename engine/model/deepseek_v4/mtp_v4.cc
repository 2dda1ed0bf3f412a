#include "engine/model/deepseek_v4/mtp_v4.h"

namespace foredraft {

void MtpSeedHcStack(const V4Forward& f, Matrix<const float> x, Matrix<float> streams) {
  f.ops.broadcast_streams(
      f.stream,
      {.streams = streams, .x = x, .index = f.batch.index, .stream_count = f.shape().hc_mult, .add = 0});
}

void MtpProjection(const V4Forward& f, const V4ModuleWeights& w, const bf16* embed, Matrix<float> streams) {
  const V4Activations& a = f.activations;
  const int width = f.config.hidden_size, stream_count = f.shape().hc_mult;
  const Matrix<float> embedded = a.collapsed.first_rows(f.rows()),
                      projected = a.projected.first_rows(f.rows());
  const Matrix<bf16> normed = a.normed.first_rows(f.rows());
  const Matrix<bf16> stream_rows = a.stream_rows.first_rows(f.rows() * stream_count);
  // The streams one below the other: [R N, D].
  const Matrix<const float> previous = Dense(f.batch.previous.data, stream_rows.rows, width);
  f.ops.rms_norm(f.stream, {.out_bf16 = stream_rows, .x = previous, .weight = w.hnorm, .eps = f.norm_eps()});
  f.Linear(Dense(streams.data, stream_rows.rows, width), stream_rows, w.h_proj);
  f.ops.embed(f.stream,
              {.out = embedded, .table = embed, .ids = f.batch.ids, .vocab_size = f.config.vocab_size});
  f.ops.rms_norm(f.stream, {.out_bf16 = normed, .x = embedded, .weight = w.enorm, .eps = f.norm_eps()});
  f.Linear(projected, normed, w.e_proj);
  f.ops.broadcast_streams(f.stream, {.streams = streams,
                                     .x = projected,
                                     .index = f.batch.index,
                                     .stream_count = stream_count,
                                     .add = 1,
                                     .skip_position = 1});
}

void MtpDecoderLayerTail(const V4Forward& f, const V4ModuleWeights& w, const V4LayerCache& cache,
                         Matrix<float> streams) {
  V4Layer(f, w.layer, {.kind = AttentionKind::kWindow, .cache = cache, .first_position = 1}, streams);
}

void MtpForwardTail(const V4Forward& f, const V4ModuleWeights& w, const bf16* embed,
                    const V4LayerCache& cache, Matrix<float> streams) {
  MtpProjection(f, w, embed, streams);
  MtpDecoderLayerTail(f, w, cache, streams);
}

void MtpComputeLogitsTail(const V4Forward& f, const V4Head& w, Matrix<const float> streams,
                          Matrix<float> logits) {
  const V4Activations& a = f.activations;
  const Matrix<float> collapsed = a.collapsed.first_rows(streams.rows);
  const Matrix<bf16> normed = a.normed.first_rows(streams.rows);
  f.ops.hyper_head(f.stream, {.out = collapsed,
                              .pre = Dense(a.mix.data, streams.rows, f.shape().hc_mult),
                              .streams = streams,
                              .fn = w.hc_head.fn,
                              .scale = w.hc_head.scale,
                              .base = w.hc_head.base,
                              .stream_count = f.shape().hc_mult,
                              .hc_eps = f.hc_eps(),
                              .norm_eps = f.norm_eps()});
  f.ops.rms_norm(f.stream, {.out_bf16 = normed, .x = collapsed, .weight = w.norm, .eps = f.norm_eps()});
  f.ops.gemm(f.stream, {.out = logits, .x = normed, .weight = w.head});
}

}  // namespace foredraft
