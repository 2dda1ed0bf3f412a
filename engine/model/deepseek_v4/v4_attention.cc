#include "engine/model/deepseek_v4/v4_attention.h"

#include <algorithm>
#include <cmath>

namespace foredraft {
namespace {

const float* CosSin(const V4Forward& f, AttentionKind kind) {
  return kind == AttentionKind::kWindow ? f.main_cos_sin : f.compress_cos_sin;
}

// a.latent_normed and a.q_rotated.
void Queries(const V4Forward& f, const V4AttentionWeights& w, const float* cos_sin) {
  const V4Activations& a = f.activations;
  const Matrix<float> latent = a.latent.first_rows(f.rows()), q = a.q.first_rows(f.rows());
  const Matrix<bf16> normed = a.latent_normed.first_rows(f.rows());
  f.Linear(latent, a.normed.first_rows(f.rows()), w.wq_a);
  f.ops.rms_norm(f.stream, {.out_bf16 = normed, .x = latent, .weight = w.q_norm, .eps = f.norm_eps()});
  f.Linear(q, normed, w.wq_b);
  f.ops.rotate_heads(f.stream, {.out = a.q_rotated.first_rows(f.rows()),
                                .x = q,
                                .cos_sin = cos_sin,
                                .index = f.batch.index,
                                .head_count = f.config.num_attention_heads,
                                .head_dim = f.shape().head_dim,
                                .rope_dim = f.config.qk_rope_head_dim,
                                .norm = 1,
                                .eps = f.norm_eps()});
}

// a.keys.
void Keys(const V4Forward& f, const V4AttentionWeights& w, const V4LayerCache& cache, const float* cos_sin) {
  const V4Activations& a = f.activations;
  const Matrix<float> kv = a.kv.first_rows(f.rows());
  f.Linear(kv, a.normed.first_rows(f.rows()), w.wkv);
  f.ops.write_keys(f.stream, {.keys = a.keys.first_rows(f.rows()),
                              .window = cache.keys,
                              .kv = kv,
                              .norm_weight = w.kv_norm,
                              .cos_sin = cos_sin,
                              .index = f.batch.index,
                              .rope_dim = f.config.qk_rope_head_dim,
                              .eps = f.norm_eps()});
}

void Compressor(const V4Forward& f, const CompressorWeights& w, AttentionKind kind,
                const PagedRows<bf16>& entries, const PagedRows<float>& state) {
  const V4Activations& a = f.activations;
  const Matrix<float> values = Dense(a.values.data, f.rows(), w.wkv.n);
  const Matrix<float> gates = Dense(a.gates.data, f.rows(), w.wgate.n);
  f.Linear(values, a.normed.first_rows(f.rows()), w.wkv);
  f.Linear(gates, a.normed.first_rows(f.rows()), w.wgate);
  f.ops.compress(f.stream, {.entries = entries,
                            .state = state,
                            .values = values,
                            .gates = gates,
                            .ape = w.ape,
                            .norm_weight = w.norm,
                            .cos_sin = f.compress_cos_sin,
                            .index = f.batch.index,
                            .ratio = f.shape().Ratio(kind),
                            .overlapping = kind == AttentionKind::kCompressedSparse ? 1 : 0,
                            .rope_dim = f.config.qk_rope_head_dim,
                            .eps = f.norm_eps()});
}

// a.selected: the entries that each row attends.
void SelectByIndexer(const V4Forward& f, const IndexerWeights& w, const V4LayerCache& cache) {
  const V4Activations& a = f.activations;
  const Matrix<float> q = a.index_q.first_rows(f.rows()), weights = a.index_weights.first_rows(f.rows());
  const Matrix<bf16> rotated = a.index_rotated.first_rows(f.rows());
  Compressor(f, w.compressor, AttentionKind::kCompressedSparse, cache.index_entries, cache.index_state);
  f.Linear(q, a.latent_normed.first_rows(f.rows()), w.wq_b);
  f.Linear(weights, a.normed.first_rows(f.rows()), w.weights_proj);
  f.ops.rotate_heads(f.stream, {.out = rotated,
                                .x = q,
                                .cos_sin = f.compress_cos_sin,
                                .index = f.batch.index,
                                .head_count = f.config.index_n_heads,
                                .head_dim = f.config.index_head_dim,
                                .rope_dim = f.config.qk_rope_head_dim});
  for (int first = 0; first < f.rows(); first += kIndexerRowsAtOnce) {
    const int count = std::min(kIndexerRowsAtOnce, f.rows() - first);
    f.ops.select_entries(f.stream, {.selected = a.selected + int64_t{first} * f.config.index_topk,
                                    .scores = a.index_scores.first_rows(count),
                                    .q = rotated.row_range(first, count),
                                    .weights = weights.row_range(first, count),
                                    .entries = cache.index_entries,
                                    .index = {.slots = f.batch.index.slots + first,
                                              .positions = f.batch.index.positions + first,
                                              .rows = count},
                                    .head_count = f.config.index_n_heads,
                                    .ratio = f.shape().sparse_ratio,
                                    .top_k = f.config.index_topk,
                                    .scale = 1 / std::sqrt(static_cast<float>(f.config.index_head_dim) *
                                                           f.config.index_n_heads)});
  }
}

// a.projected from a.q, the heads' outputs.
void Output(const V4Forward& f, const V4AttentionWeights& w, const float* cos_sin) {
  const V4Activations& a = f.activations;
  const DeepseekV4Shape& shape = f.shape();
  const Matrix<bf16> heads = a.q_rotated.first_rows(f.rows()), grouped = a.grouped.first_rows(f.rows());
  f.ops.rotate_heads(f.stream, {.out = heads,
                                .x = a.q.first_rows(f.rows()),
                                .cos_sin = cos_sin,
                                .index = f.batch.index,
                                .head_count = f.config.num_attention_heads,
                                .head_dim = shape.head_dim,
                                .rope_dim = f.config.qk_rope_head_dim,
                                .inverse = 1});
  f.ops.head_gemm(f.stream,
                  {.out = grouped,
                   .x = heads,
                   .heads = w.wo_a,
                   .out_head_stride = shape.o_lora_rank,
                   .x_head_stride = f.config.num_attention_heads / shape.o_groups * shape.head_dim});
  f.Linear(a.projected.first_rows(f.rows()), grouped, w.wo_b);
}

}  // namespace

void V4Attention(const V4Forward& f, const V4AttentionWeights& w, const V4LayerContext& context) {
  const V4Activations& a = f.activations;
  const V4LayerCache& cache = context.cache;
  const float* const cos_sin = CosSin(f, context.kind);
  const bool sparse = context.kind == AttentionKind::kCompressedSparse;
  Queries(f, w, cos_sin);
  Keys(f, w, cache, cos_sin);
  if (context.kind != AttentionKind::kWindow) {
    Compressor(f, w.compressor, context.kind, cache.entries, cache.state);
  }
  if (sparse) SelectByIndexer(f, w.indexer, cache);
  f.ops.window_attention(f.stream, {.out = a.q.first_rows(f.rows()),
                                    .q = a.q_rotated.first_rows(f.rows()),
                                    .keys = a.keys.first_rows(f.rows()),
                                    .window = cache.keys,
                                    .entries = cache.entries,
                                    .selected = sparse ? a.selected : nullptr,
                                    .sinks = w.attn_sink,
                                    .index = f.batch.index,
                                    .selected_count = sparse ? f.config.index_topk : 0,
                                    .head_count = f.config.num_attention_heads,
                                    .window_len = f.shape().sliding_window,
                                    .ratio = f.shape().Ratio(context.kind),
                                    .first_position = context.first_position,
                                    .scale = static_cast<float>(f.config.AttentionScale())});
  Output(f, w, cos_sin);
}

}  // namespace foredraft
