#include "engine/model/deepseek_v4/deepseek_v4_cache.h"

#include "base/check.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"

namespace foredraft {
namespace {

CacheRows Keys(const ModelConfig& config, DType kv_dtype, int positions) {
  return {.row_bytes = V4KeyLayout(config, kv_dtype).bytes(), .positions = positions, .format = kv_dtype};
}

CacheRows IndexEntries(const ModelConfig& config) {
  return {.row_bytes = config.index_head_dim * static_cast<int>(sizeof(bf16)),
          .positions = V4ShapeOf(config).sparse_ratio,
          .format = DType::kBF16};
}

// The state of a compressor: the values and gates of a position until its windows are complete. With
// overlapping windows, each has two halves.
CacheRows State(int width, bool overlapping) {
  const int channels = (overlapping ? 2 : 1) * width;
  return {.row_bytes = 2 * channels * static_cast<int>(sizeof(float)), .format = DType::kF32};
}

template <class T>
PagedRows<T> Paged(const KvCache& cache, CacheHandle handle) {
  if (!handle) return {};
  const CachedRows rows = cache.rows(handle);
  CHECK_EQ(rows.row_bytes % sizeof(T), 0u);
  return {.data = reinterpret_cast<T*>(rows.data),
          .block_tables = rows.block_tables,
          .table_stride = rows.table_stride,
          .rows_per_block = rows.rows_per_block,
          .width = rows.row_bytes / static_cast<int>(sizeof(T))};
}

}  // namespace

KvRowLayout V4KeyLayout(const ModelConfig& config, DType kv_dtype) {
  return {.latent_dim = V4ShapeOf(config).head_dim - config.qk_rope_head_dim,
          .rope_dim = config.qk_rope_head_dim,
          .dtype = kv_dtype,
          .group = KvRowLayout::kKeyGroup};
}

std::vector<V4LayerRows> RegisterV4Rows(const ModelConfig& config, int module_count, KvFormat kv_format,
                                        CacheRegistry& registry) {
  const DeepseekV4Shape& v4 = V4ShapeOf(config);
  // The block of a DSpark stage reads the whole window before its first row.
  const bool blocks = config.dspark && module_count > 0;
  const RecentRows window = {.group = "window", .lookback = v4.sliding_window - (blocks ? 0 : 1)};
  const RecentRows heavy_window = {.group = "window", .lookback = v4.heavy_ratio - 1};
  // Two windows of an overlapping compressor. They are large and soon useless, so they have a group of their
  // own.
  const RecentRows tail = {
      .group = "tail", .lookback = 2 * v4.sparse_ratio - 1, .tokens_per_block = 2 * v4.sparse_ratio};
  std::vector<V4LayerRows> layers(config.num_hidden_layers + module_count);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    V4LayerRows& rows = layers[layer];
    rows.keys = registry.AddRecent(window, Keys(config, kv_format.dtype, 1));
    const AttentionKind kind = v4.Kind(static_cast<int>(layer));
    if (kind == AttentionKind::kWindow) continue;
    const bool sparse = kind == AttentionKind::kCompressedSparse;
    rows.entries = registry.Add(Keys(config, kv_format.dtype, v4.Ratio(kind)));
    rows.state = registry.AddRecent(sparse ? tail : heavy_window, State(v4.head_dim, sparse));
    if (!sparse) continue;
    rows.index_entries = registry.Add(IndexEntries(config));
    rows.index_state = registry.AddRecent(tail, State(config.index_head_dim, true));
  }
  return layers;
}

V4LayerCache LayerCacheOf(const ModelConfig& config, const KvCache& cache, const V4LayerRows& rows) {
  return {.layout = V4KeyLayout(config, cache.rows(rows.keys).format.dtype),
          .keys = Paged<uint8_t>(cache, rows.keys),
          .entries = Paged<uint8_t>(cache, rows.entries),
          .state = Paged<float>(cache, rows.state),
          .index_entries = Paged<bf16>(cache, rows.index_entries),
          .index_state = Paged<float>(cache, rows.index_state)};
}

}  // namespace foredraft
