#include "tools/validate_mtp/drafter_cache.h"

#include <algorithm>

#include "engine/model/deepseek_v3/deepseek_v3.h"
#include "engine/model/deepseek_v4/deepseek_v4_cache.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/model_kind.h"

namespace foredraft {
namespace {

template <class T>
T ReadOne(Device& device, Stream& stream, const T* from) {
  T value;
  device.CopyToHost(stream, &value, from, sizeof(value));
  stream.Synchronize();
  return value;
}

// The lowest position that drafts after position `last` read.
int FirstRead(const ModelConfig& config, int last) {
  if (FindV4Shape(config) == nullptr) return 1;
  return config.dspark.has_value() ? std::max(0, last - V4ShapeOf(config).sliding_window)
                                   : std::max(1, last + 2 - V4ShapeOf(config).sliding_window);
}

}  // namespace

std::vector<DrafterLayerRows> RowsOfDrafter(const ModelConfig& config, int module_count) {
  CacheRegistry registry(/*tokens_per_block=*/1);
  std::vector<DrafterLayerRows> drafter;
  if (config.draft_head != nullptr) {
    drafter.push_back(
        {.keys = RegisterRows(config, /*module_count=*/0, DType::kBF16, registry), .index_keys = {}});
  } else if (FindV4Shape(config) != nullptr) {
    const auto layers = RegisterV4Rows(config, module_count, DType::kBF16, registry);
    for (int i = 0; i < module_count; ++i) {
      drafter.push_back({.keys = layers[config.num_hidden_layers + i].keys, .index_keys = {}});
    }
  } else {
    const auto layers = RegisterV3Rows(config, module_count, DType::kBF16, registry);
    for (int i = 0; i < module_count; ++i) {
      const V3LayerRows& rows = layers[config.num_hidden_layers + i];
      drafter.push_back({.keys = rows.latents, .index_keys = rows.index_keys});
    }
  }
  return drafter;
}

std::vector<uint8_t> ReadCacheRow(Device& device, Stream& stream, const CachedRows& rows, int slot,
                                  int position) {
  const int64_t entry = int64_t{slot} * rows.table_stride + position / rows.rows_per_block;
  const int64_t block = ReadOne(device, stream, rows.block_tables + entry);
  if (block == 0) return {};
  std::vector<uint8_t> bytes(rows.row_bytes);
  const int64_t row = block * rows.rows_per_block + position % rows.rows_per_block;
  device.CopyToHost(stream, bytes.data(), rows.data + row * rows.row_bytes, bytes.size());
  stream.Synchronize();
  return bytes;
}

std::vector<uint8_t> ReadDrafterCache(Device& device, Stream& stream, const ModelConfig& config,
                                      const KvCache& cache, int slot, int last) {
  const bool blocks = config.dspark.has_value();
  const int modules = blocks ? config.dspark->stage_count : 1;
  std::vector<uint8_t> all;
  const auto read = [&](CacheHandle handle) {
    if (!handle) return;
    for (int position = FirstRead(config, last); position < last + (blocks ? 0 : 1); ++position) {
      const std::vector<uint8_t> row = ReadCacheRow(device, stream, cache.rows(handle), slot, position);
      all.insert(all.end(), row.begin(), row.end());
    }
  };
  for (const DrafterLayerRows& layer : RowsOfDrafter(config, modules)) {
    read(layer.keys);
    read(layer.index_keys);
  }
  return all;
}

}  // namespace foredraft
