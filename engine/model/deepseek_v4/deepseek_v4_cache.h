#pragma once

// The rows that DeepSeek-V4 keeps in the cache (docs/deepseek-v4.md section 10): their registration, and a
// layer's views of them.

#include <vector>

#include "engine/cache/cache_groups.h"
#include "engine/cache/kv_cache.h"
#include "engine/model/model_config.h"
#include "kernels/ops.h"

namespace foredraft {

// The rows of one layer, as registered.
struct V4LayerRows {
  CacheHandle keys;
  CacheHandle entries;        // absent in layers of ratio 0
  CacheHandle state;          // absent in layers of ratio 0
  CacheHandle index_entries;  // of CSA layers
  CacheHandle index_state;    // of CSA layers
};

// [num_hidden_layers], then the MTP modules. kv_format: of keys and entries, BF16 or F8E4M3.
std::vector<V4LayerRows> RegisterV4Rows(const ModelConfig& config, int module_count, KvFormat kv_format,
                                        CacheRegistry& registry);

// A row of keys or entries (kernels/kv_row.h).
KvRowLayout V4KeyLayout(const ModelConfig& config, DType kv_dtype);

// The cache of one layer. What is not registered is absent.
struct V4LayerCache {
  KvRowLayout layout;             // of a key and an entry
  PagedRows<uint8_t> keys;        // by position
  PagedRows<uint8_t> entries;     // by window
  PagedRows<float> state;         // by position
  PagedRows<bf16> index_entries;  // by window
  PagedRows<float> index_state;   // by position
};
V4LayerCache LayerCacheOf(const ModelConfig& config, const KvCache& cache, const V4LayerRows& rows);

}  // namespace foredraft
