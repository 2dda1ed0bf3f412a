#include "engine/model/deepseek_v4/v4_layer.h"

#include "engine/model/deepseek_v4/v4_attention.h"
#include "engine/model/deepseek_v4/v4_experts.h"

namespace foredraft {
namespace {

// a.normed = the normed input of a block, a.mix = the weights of its output.
void EnterBlock(const V4Forward& f, const HyperWeights& w, const float* norm, Matrix<const float> streams) {
  const V4Activations& a = f.activations;
  const Matrix<float> collapsed = a.collapsed.first_rows(f.rows());
  f.ops.hyper_pre(f.stream, {.out = collapsed,
                             .mix = a.mix.first_rows(f.rows()),
                             .streams = streams,
                             .fn = w.fn,
                             .scale = w.scale,
                             .base = w.base,
                             .stream_count = f.shape().hc_mult,
                             .sinkhorn_iters = f.shape().hc_sinkhorn_iters,
                             .hc_eps = f.hc_eps(),
                             .norm_eps = f.norm_eps()});
  f.ops.rms_norm(
      f.stream,
      {.out_bf16 = a.normed.first_rows(f.rows()), .x = collapsed, .weight = norm, .eps = f.norm_eps()});
}

// Adds a.projected.
void LeaveBlock(const V4Forward& f, Matrix<float> streams) {
  f.ops.hyper_post(f.stream, {.streams = streams,
                              .x = f.activations.projected.first_rows(f.rows()),
                              .mix = f.activations.mix.first_rows(f.rows()),
                              .stream_count = f.shape().hc_mult});
}

}  // namespace

void V4Layer(const V4Forward& f, const V4LayerWeights& w, const V4LayerContext& context,
             Matrix<float> streams) {
  EnterBlock(f, w.hc_attn, w.attn_norm, streams);
  V4Attention(f, w.attn, context);
  LeaveBlock(f, streams);
  EnterBlock(f, w.hc_ffn, w.ffn_norm, streams);
  V4Experts(f, w.ffn);
  LeaveBlock(f, streams);
}

}  // namespace foredraft
