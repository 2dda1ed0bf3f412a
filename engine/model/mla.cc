#include "engine/model/mla.h"

namespace foredraft {
namespace {

// transformers builds these two norms with its class default, whatever rms_norm_eps says.
constexpr float kLoraNormEps = 1e-6f;

// Queries to a.q_roped, cache rows to their blocks.
void Project(const Ops& ops, Stream& stream, const ModelConfig& config, const MlaWeights& w,
             const Activations& a, const Batch& batch, const AttentionContext& context,
             const InputRows& normed) {
  const int rows = normed.rows();
  const Matrix<float> qkv_a = a.qkv_a.first_rows(rows);
  const int ckv_width = config.kv_lora_rank + config.qk_rope_head_dim;
  const int q_width = qkv_a.cols - ckv_width;
  Matrix<float> q = qkv_a.columns(0, q_width);

  const GemmForm form = batch.gemm_form();
  ops.gemm(stream, {.out = qkv_a,
                    .x = normed.as_bf16,
                    .x_f8 = normed.as_f8,
                    .weight = w.qkv_a,
                    .bias = w.qkv_a_bias,
                    .form = form});
  ops.kv_write(stream.Fork(), {.layer = context.cache,
                               .ckv = qkv_a.columns(q_width, ckv_width),
                               .norm_weight = w.kv_a_layernorm,
                               .cos_sin = context.cos_sin,
                               .index = batch.index,
                               .eps = kLoraNormEps});
  if (w.q_b) {
    const InputRows q_a = a.q_a.first_rows(rows).For(w.q_b);
    ops.rms_norm(stream, {.out_bf16 = q_a.as_bf16,
                          .out_f8 = q_a.as_f8,
                          .x = q,
                          .weight = w.q_a_layernorm,
                          .eps = kLoraNormEps});
    q = a.q.first_rows(rows);
    ops.gemm(stream, {.out = q, .x = q_a.as_bf16, .x_f8 = q_a.as_f8, .weight = w.q_b, .form = form});
  }
  ops.rope_query(stream, {.out = a.q_roped.first_rows(rows),
                          .q = q,
                          .cos_sin = context.cos_sin,
                          .index = batch.index,
                          .head_count = config.num_attention_heads,
                          .head_dim = config.qk_head_dim(),
                          .rope_dim = config.qk_rope_head_dim});
  stream.Join();
}

void AttendDecode(const Ops& ops, Stream& stream, const ModelConfig& config, const MlaWeights& w,
                  const Activations& a, const Batch& batch, const AttentionContext& context) {
  const int rows = batch.index.rows;
  const Matrix<bf16> q = a.q_roped.first_rows(rows);
  const Matrix<bf16> q_lat = a.q_lat.first_rows(rows);
  const Matrix<bf16> o_lat = a.o_lat.first_rows(rows);
  ops.head_gemm(stream, {.out = q_lat,
                         .x = q,
                         .heads = w.w_uk,
                         .out_head_stride = config.kv_lora_rank,
                         .x_head_stride = config.qk_head_dim()});
  ops.mla_decode(stream, {.out = o_lat,
                          .q_lat = q_lat,
                          .q = q,
                          .layer = context.cache,
                          .index = batch.index,
                          .head_count = config.num_attention_heads,
                          .head_dim = config.qk_head_dim(),
                          .first_position = context.first_position,
                          .scale = static_cast<float>(config.AttentionScale())});
  ops.head_gemm(stream, {.out = a.attention.first_rows(rows),
                         .x = o_lat,
                         .heads = w.w_uv,
                         .out_head_stride = config.v_head_dim,
                         .x_head_stride = config.kv_lora_rank});
}

// Keys and values come back out of the cache, as rounded there, also those of this chunk: chunk borders leave
// no trace.
void AttendPrefill(const Ops& ops, Stream& stream, const ModelConfig& config, const MlaWeights& w,
                   const Activations& a, const PrefillSpan& span, const AttentionContext& context) {
  const int context_len = span.first_position + span.row_count - context.first_position;
  const Matrix<bf16> latent = a.latent.first_rows(context_len);
  const Matrix<bf16> k_pe = a.k_pe.first_rows(context_len);
  const Matrix<bf16> kv = a.kv.first_rows(context_len);
  ops.gather_kv(stream, {.latent = latent,
                         .rope = k_pe,
                         .layer = context.cache,
                         .slot = span.slot,
                         .first_position = context.first_position});
  ops.gemm(stream, {.out_bf16 = kv, .x = latent, .weight = w.kv_b, .form = GemmForm::kPrefill});
  ops.mla_prefill(stream, {.out = a.attention.row_range(span.first_row, span.row_count),
                           .q = a.q_roped.row_range(span.first_row, span.row_count),
                           .kv = kv,
                           .k_pe = k_pe,
                           .chunk_first = span.first_position,
                           .first_position = context.first_position,
                           .head_count = config.num_attention_heads,
                           .nope_dim = config.qk_nope_head_dim,
                           .rope_dim = config.qk_rope_head_dim,
                           .value_dim = config.v_head_dim,
                           .scale = static_cast<float>(config.AttentionScale())});
}

}  // namespace

void LatentAttention(const Ops& ops, Stream& stream, const ModelConfig& config, const MlaWeights& w,
                     const Activations& a, const Batch& batch, const AttentionContext& context,
                     const InputRows& normed, Matrix<float> projected) {
  Project(ops, stream, config, w, a, batch, context, normed);
  if (batch.prefill_form()) {
    for (const PrefillSpan& span : batch.spans) AttendPrefill(ops, stream, config, w, a, span, context);
  } else {
    AttendDecode(ops, stream, config, w, a, batch, context);
  }
  ops.gemm(stream, {.out = projected,
                    .x = a.attention.first_rows(normed.rows()),
                    .weight = w.o_proj,
                    .bias = w.o_proj_bias,
                    .form = batch.gemm_form()});
}

}  // namespace foredraft
