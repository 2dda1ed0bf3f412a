#include "engine/model/deepseek_v4/v4_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/linear.h"
#include "engine/model/rope.h"
#include "engine/model/tensor_group.h"

namespace foredraft {
namespace {

// The rank's number of heads.
int HeadCount(const ModelConfig& config, const V4AttentionWeights& w) {
  return w.wq_b.n / V4ShapeOf(config).head_dim;
}

// a.latent_normed, in the forms that its readers read.
InputRows LatentRows(const Forward& f, const V4AttentionWeights& w, const V4Activations& a) {
  return a.latent_normed.first_rows(f.rows()).ReadBy({w.wq_b, w.indexer.wq_b});
}

// Computes a.latent_normed and a.q_rotated.
void Queries(const Forward& f, const V4AttentionWeights& w, const V4LayerContext& context,
             const InputRows& normed) {
  const V4Activations& a = context.activations;
  const Matrix<float> latent = a.latent.first_rows(f.rows()), q = a.q.first_rows(f.rows());
  const InputRows latent_normed = LatentRows(f, w, a);
  Linear(f, normed, {.out = latent, .weight = w.wq_a});
  RmsNorm(f, latent_normed, {.x = latent, .weight = w.q_norm, .eps = f.norm_eps()});
  Linear(f, latent_normed, {.out = q, .weight = w.wq_b});
  f.ops.rotate_heads(f.stream, {.out = a.q_rotated.first_rows(f.rows()),
                                .x = q,
                                .cos_sin = context.cos_sin,
                                .index = f.batch.index,
                                .head_count = HeadCount(f.config, w),
                                .head_dim = V4ShapeOf(f.config).head_dim,
                                .rope_dim = f.config.qk_rope_head_dim,
                                .norm = 1,
                                .eps = f.norm_eps()});
}

// `rows` with a block table that maps no position, so that nothing is written.
PagedRows<uint8_t> Unmapped(PagedRows<uint8_t> rows, const int32_t* unmapped) {
  rows.block_tables = unmapped;
  rows.table_stride = 0;
  rows.rows_per_block = std::numeric_limits<int32_t>::max();
  return rows;
}

// The keys of the forward's own rows.
Matrix<uint8_t> KeysOf(const Forward& f, const V4LayerContext& context) {
  return Dense(context.activations.keys, f.rows(), context.cache.layout.bytes());
}

// Where a compressor writes.
struct CompressedRows {
  PagedRows<uint8_t> entries;
  KvRowLayout layout;  // of an entry
  PagedRows<float> state;
};

CompressedRows IndexRowsOf(const Forward& f, const V4LayerCache& cache) {
  const PagedRows<bf16>& entries = cache.index_entries;
  const int32_t rope_dim = f.config.qk_rope_head_dim;
  return {.entries = {.data = reinterpret_cast<uint8_t*>(entries.data),
                      .block_tables = entries.block_tables,
                      .table_stride = entries.table_stride,
                      .rows_per_block = entries.rows_per_block,
                      .width = entries.width * static_cast<int32_t>(sizeof(bf16))},
          .layout = {.latent_dim = entries.width - rope_dim, .rope_dim = rope_dim},
          .state = cache.index_state};
}

void Compressor(const Forward& f, const CompressorWeights& w, const V4LayerContext& context,
                const InputRows& normed, const CompressedRows& out) {
  const V4Activations& a = context.activations;
  const Matrix<float> values = Dense(a.values.data, f.rows(), w.wkv.n);
  const Matrix<float> gates = Dense(a.gates.data, f.rows(), w.wgate.n);
  Linear(f, normed, {.out = values, .weight = w.wkv});
  Linear(f, normed, {.out = gates, .weight = w.wgate});
  f.ops.compress(f.stream, {.entries = out.entries,
                            .layout = out.layout,
                            .state = out.state,
                            .values = values,
                            .gates = gates,
                            .ape = w.ape,
                            .norm_weight = w.norm,
                            .cos_sin = context.cos_sin,
                            .index = f.batch.index,
                            .ratio = V4ShapeOf(f.config).Ratio(context.kind),
                            .overlapping = context.kind == AttentionKind::kCompressedSparse ? 1 : 0,
                            .eps = f.norm_eps()});
}

// Fills a.selected with the entries that each row attends.
void SelectByIndexer(const Forward& f, const V4AttentionWeights& w, const V4LayerContext& context,
                     const InputRows& normed) {
  const V4Activations& a = context.activations;
  const V4LayerCache& cache = context.cache;
  const Matrix<float> q = a.index_q.first_rows(f.rows()), weights = a.index_weights.first_rows(f.rows());
  const Matrix<bf16> rotated = a.index_rotated.first_rows(f.rows());
  Compressor(f, w.indexer.compressor, context, normed, IndexRowsOf(f, cache));
  Linear(f, LatentRows(f, w, a), {.out = q, .weight = w.indexer.wq_b});
  Linear(f, normed, {.out = weights, .weight = w.indexer.weights_proj});
  f.ops.rotate_heads(f.stream, {.out = rotated,
                                .x = q,
                                .cos_sin = context.cos_sin,
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
                                    .ratio = V4ShapeOf(f.config).sparse_ratio,
                                    .top_k = f.config.index_topk,
                                    .scale = 1 / std::sqrt(static_cast<float>(f.config.index_head_dim) *
                                                           f.config.index_n_heads)});
  }
}

// Computes `projected` from a.q, which has the heads' outputs.
void Output(const Forward& f, const V4AttentionWeights& w, const V4LayerContext& context,
            Matrix<float> projected) {
  const V4Activations& a = context.activations;
  const DeepseekV4Shape& shape = V4ShapeOf(f.config);
  const Matrix<bf16> heads = a.q_rotated.first_rows(f.rows()), grouped = a.grouped.first_rows(f.rows());
  f.ops.rotate_heads(f.stream, {.out = heads,
                                .x = a.q.first_rows(f.rows()),
                                .cos_sin = context.cos_sin,
                                .index = f.batch.index,
                                .head_count = HeadCount(f.config, w),
                                .head_dim = shape.head_dim,
                                .rope_dim = f.config.qk_rope_head_dim,
                                .inverse = 1});
  f.ops.head_gemm(f.stream,
                  {.out = grouped,
                   .x = heads,
                   .heads = w.wo_a,
                   .out_head_stride = w.wo_a.first.n,
                   .x_head_stride = f.config.num_attention_heads / shape.o_groups * shape.head_dim});
  SummedLinear(f, {.as_bf16 = grouped}, {.out = projected, .weight = w.wo_b});
}

}  // namespace

void AllocateV4(ActivationAllocator& allocate, const ModelConfig& config, const ForwardCapacity& capacity,
                const V4AttentionWeights& w, V4Activations& a) {
  const DeepseekV4Shape& shape = V4ShapeOf(config);
  const int rows = capacity.rows;
  const int width = w.wq_b.n;
  const int channels = 2 * std::max(shape.head_dim, config.index_head_dim);
  const int index_width = config.index_n_heads * config.index_head_dim;
  allocate(a.mix, rows, (2 + config.hc_mult) * config.hc_mult);
  allocate(a.latent, rows, config.q_lora_rank);
  allocate(a.latent_normed, rows, config.q_lora_rank);
  allocate(a.q, rows, width);
  allocate(a.q_rotated, rows, width);
  allocate(a.kv, rows, shape.head_dim);
  int key_bytes = 0;
  for (const NamedKvDType& row : kKvDTypes) {
    key_bytes = std::max(key_bytes, V4KeyLayout(config, row.dtype).bytes());
  }
  allocate(a.keys, static_cast<size_t>(rows) * key_bytes);
  allocate(a.values, rows, channels);
  allocate(a.gates, rows, channels);
  allocate(a.index_q, rows, index_width);
  allocate(a.index_rotated, rows, index_width);
  allocate(a.index_weights, rows, config.index_n_heads);
  allocate(a.index_scores, std::min(rows, kIndexerRowsAtOnce), capacity.positions / shape.sparse_ratio + 1);
  allocate(a.selected, static_cast<size_t>(rows) * config.index_topk);
  allocate(a.grouped, rows, w.wo_b.k);
  allocate(a.unmapped, 1);
}

void V4Keys(const Forward& f, const V4AttentionWeights& w, const V4LayerContext& context,
            const InputRows& normed) {
  const V4Activations& a = context.activations;
  const Matrix<float> kv = a.kv.first_rows(f.rows());
  const bool cached = context.block_rows == 0;
  Linear(f, normed, {.out = kv, .weight = w.wkv});
  f.ops.write_keys(f.stream,
                   {.keys = KeysOf(f, context),
                    .window = cached ? context.cache.keys : Unmapped(context.cache.keys, a.unmapped),
                    .layout = context.cache.layout,
                    .kv = kv,
                    .norm_weight = w.kv_norm,
                    .cos_sin = context.cos_sin,
                    .index = f.batch.index,
                    .eps = f.norm_eps()});
}

InputRows V4AttentionInput(const InputRows& buffer, const V4AttentionWeights& w) {
  return buffer.ReadBy({w.wq_a, w.wkv, w.compressor.wkv, w.compressor.wgate, w.indexer.weights_proj,
                        w.indexer.compressor.wkv, w.indexer.compressor.wgate});
}

void V4Attention(const Forward& f, const V4AttentionWeights& w, const V4LayerContext& context,
                 const InputRows& normed, Matrix<float> projected) {
  const V4Activations& a = context.activations;
  const V4LayerCache& cache = context.cache;
  const DeepseekV4Shape& shape = V4ShapeOf(f.config);
  const bool sparse = context.kind == AttentionKind::kCompressedSparse;
  Queries(f, w, context, normed);
  V4Keys(f, w, context, normed);
  if (context.kind != AttentionKind::kWindow) {
    Compressor(f, w.compressor, context, normed, {cache.entries, cache.layout, cache.state});
  }
  if (sparse) SelectByIndexer(f, w, context, normed);
  if (context.block_rows > 0) {
    f.ops.block_attention(f.stream, {.out = a.q.first_rows(f.rows()),
                                     .q = a.q_rotated.first_rows(f.rows()),
                                     .keys = KeysOf(f, context),
                                     .window = cache.keys,
                                     .layout = cache.layout,
                                     .sinks = w.attn_sink,
                                     .index = f.batch.index,
                                     .block_rows = context.block_rows,
                                     .head_count = HeadCount(f.config, w),
                                     .window_len = shape.sliding_window,
                                     .scale = static_cast<float>(AttentionScale(shape.head_dim, {}))});
    return Output(f, w, context, projected);
  }
  f.ops.window_attention(f.stream, {.out = a.q.first_rows(f.rows()),
                                    .q = a.q_rotated.first_rows(f.rows()),
                                    .keys = KeysOf(f, context),
                                    .window = cache.keys,
                                    .entries = cache.entries,
                                    .layout = cache.layout,
                                    .selected = sparse ? a.selected : nullptr,
                                    .sinks = w.attn_sink,
                                    .index = f.batch.index,
                                    .selected_count = sparse ? f.config.index_topk : 0,
                                    .head_count = HeadCount(f.config, w),
                                    .window_len = shape.sliding_window,
                                    .ratio = shape.Ratio(context.kind),
                                    .first_position = context.first_position,
                                    .scale = static_cast<float>(AttentionScale(shape.head_dim, {}))});
  Output(f, w, context, projected);
}

}  // namespace foredraft
