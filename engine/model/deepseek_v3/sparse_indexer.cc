#include "engine/model/deepseek_v3/sparse_indexer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/model/linear.h"

namespace foredraft {
namespace {

constexpr float kKeyNormEps = 1e-6f;  // epsilon of the key's LayerNorm, whatever rms_norm_eps is

// The number of rows scored at once. It bounds the memory of the scores: 128 MiB for up to 4 M positions.
int ScoredRowsAtOnce(int positions) {
  constexpr int kMaxRows = 256, kMinRows = 8, kScores = 1 << 25;
  return std::clamp(kScores / positions, kMinRows, kMaxRows);
}

void WriteKeys(const Forward& f, const SparseIndexerWeights& w, const IndexerContext& context,
               const AttentionContext& attention) {
  f.ops.index_key_write(
      f.stream, {.keys = context.keys,
                 .k = context.activations->k_weights.first_rows(f.rows()).columns(0, f.config.index_head_dim),
                 .norm_weight = w.k_norm,
                 .norm_bias = w.k_norm_bias,
                 .cos_sin = attention.cos_sin,
                 .index = f.batch.index,
                 .rope_dim = f.config.qk_rope_head_dim,
                 .interleaved = f.config.index_interleaved ? 1 : 0,
                 .eps = kKeyNormEps});
}

// Selects the positions of rows [first, first + count).
void SelectRows(const Forward& f, const IndexerContext& context, const AttentionContext& attention, int first,
                int count) {
  const IndexerActivations& a = *context.activations;
  const int heads = f.config.index_n_heads, width = f.config.index_head_dim, top_k = f.config.index_topk;
  for (const int end = first + count; first < end; first += count) {
    count = std::min(a.scores.rows, end - first);
    f.ops.select_entries(f.stream, {.selected = a.selected + int64_t{first} * top_k,
                                    .scores = a.scores.first_rows(count),
                                    .q = a.rotated.row_range(first, count),
                                    .weights = a.k_weights.row_range(first, count).columns(width, heads),
                                    .entries = context.keys,
                                    .index = RowsOf(f.batch.index, first, count),
                                    .head_count = heads,
                                    .ratio = 1,
                                    .top_k = top_k,
                                    .first_entry = attention.first_position,
                                    .scale = 1 / std::sqrt(static_cast<float>(width) * heads)});
  }
}

}  // namespace

bool SelectsPositions(const ModelConfig& config, const ForwardCapacity& capacity) {
  return config.index_topk > 0 && config.runs_indexer && config.index_topk < capacity.positions;
}

void AllocateIndexer(ActivationAllocator& allocate, const ModelConfig& config,
                     const ForwardCapacity& capacity, IndexerActivations& a) {
  const int rows = capacity.rows, width = config.index_n_heads * config.index_head_dim;
  allocate(a.q, rows, width);
  allocate(a.rotated, rows, width);
  allocate(a.k_weights, rows, config.index_head_dim + config.index_n_heads);
  allocate(a.scores, std::min(rows, ScoredRowsAtOnce(capacity.positions)), capacity.positions);
  allocate(a.selected, static_cast<size_t>(rows) * config.index_topk);
  if (config.index_share_for_mtp_iteration) {
    allocate(a.recycled, static_cast<size_t>(capacity.decode_rows) * config.index_topk);
  }
}

CacheHandle RegisterIndexKeys(const ModelConfig& config, CacheRegistry& registry) {
  return registry.Add({.row_bytes = config.index_head_dim * static_cast<int>(sizeof(bf16))});
}

PagedRows<bf16> IndexKeysOf(const KvCache& cache, CacheHandle handle) {
  if (!handle) return {};
  const CachedRows rows = cache.rows(handle);
  return {.data = reinterpret_cast<bf16*>(rows.data),
          .block_tables = rows.block_tables,
          .table_stride = rows.table_stride,
          .rows_per_block = rows.rows_per_block,
          .width = rows.row_bytes / static_cast<int>(sizeof(bf16))};
}

void TakeSelected(const Forward& f, const IndexerActivations& a) {
  // copy_rows moves 32 bits, whatever they mean.
  const auto lists = [&](int32_t* positions, int rows) {
    return Dense(reinterpret_cast<float*>(positions), rows, f.config.index_topk);
  };
  f.ops.copy_rows(f.stream, {.out = lists(a.recycled, f.rows()),
                             .x = lists(a.selected, a.q.rows),
                             .x_index = f.batch.list_rows,
                             .rows = f.rows()});
}

void SelectPositions(const Forward& f, const SparseIndexerWeights& w, const IndexerContext& context,
                     const AttentionContext& attention, const IndexerInput& input) {
  const IndexerActivations& a = *context.activations;
  CHECK(static_cast<bool>(context.keys)) << "the layer has an indexer and no keys";
  Linear(f, input.normed, {.out = a.k_weights.first_rows(f.rows()), .weight = w.wk_weights});
  WriteKeys(f, w, context, attention);
  const auto selecting = [&](const PrefillSpan& span) { return SelectingRows(attention, span); };
  const bool prompt = f.batch.prefill_form();
  if (prompt && std::all_of(f.batch.spans.begin(), f.batch.spans.end(),
                            [&](const PrefillSpan& span) { return selecting(span).row_count == 0; })) {
    return;
  }
  const Matrix<float> q = a.q.first_rows(f.rows());
  Linear(f, input.queries, {.out = q, .weight = w.wq_b});
  f.ops.rope_index_query(f.stream, {.out = a.rotated.first_rows(f.rows()),
                                    .q = q,
                                    .cos_sin = attention.cos_sin,
                                    .index = f.batch.index,
                                    .head_count = f.config.index_n_heads,
                                    .head_dim = f.config.index_head_dim,
                                    .rope_dim = f.config.qk_rope_head_dim,
                                    .interleaved = f.config.index_interleaved ? 1 : 0});
  if (!prompt) return SelectRows(f, context, attention, 0, f.rows());
  for (const PrefillSpan& span : f.batch.spans) {
    const PrefillSpan rows = selecting(span);
    SelectRows(f, context, attention, rows.first_row, rows.row_count);
  }
}

}  // namespace foredraft
