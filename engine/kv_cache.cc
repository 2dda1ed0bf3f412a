#include "engine/kv_cache.h"

#include <algorithm>
#include <utility>

#include "base/benign_race.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {

int OutputWidth(const ModelConfig& config) {
  return config.v4 ? config.v4->hc_mult * config.hidden_size : config.hidden_size;
}

KvCacheShape KvCacheShape::Of(const ModelConfig& config, int module_count, int tokens_per_block,
                              std::vector<int> block_counts, DType dtype) {
  KvCacheShape shape{.groups = CacheGroupsOf(config, module_count, tokens_per_block, dtype),
                     .block_counts = std::move(block_counts),
                     .level_count = module_count,
                     .boundary_width = OutputWidth(config),
                     .latent_dim = config.kv_lora_rank,
                     .rope_dim = config.qk_rope_head_dim,
                     .dtype = dtype};
  CHECK_EQ(shape.block_counts.size(), shape.groups.size());
  return shape;
}

KvCacheShape KvCacheShape::Of(const EngineOptions& options, const ModelConfig& config, int history_blocks) {
  const std::vector<CacheGroup> groups =
      CacheGroupsOf(config, options.module_count(), options.tokens_per_block, options.kv_dtype);
  std::vector<int> counts(groups.size(), config.v4 ? 2 : 1);
  if (history_blocks > 1) {
    counts = BlockCountsOf(groups, history_blocks, options.max_batch_size, options.max_draft_len);
  }
  return Of(config, options.module_count(), options.tokens_per_block, std::move(counts), options.kv_dtype);
}

int64_t KvCacheShape::window_bytes() const {
  int64_t bytes = 0;
  for (size_t group = 1; group < groups.size(); ++group) {
    bytes += block_counts[group] * groups[group].bytes_per_block;
  }
  return bytes;
}

absl::StatusOr<KvCache> KvCache::Create(Device& device, const KvCacheShape& shape,
                                        std::span<const GroupTable> tables, bool poison) {
  CHECK_EQ(tables.size(), shape.groups.size());
  KvCache cache;
  cache.shape_ = shape;
  cache.history_table_ = tables[0];
  for (size_t group = 0; group < shape.groups.size(); ++group) {
    std::vector<RowMemory>& memory = cache.memory_.emplace_back();
    for (const LayerRows& rows : shape.groups[group].rows) {
      ASSIGN_OR_RETURN(uint8_t* const data,
                       device.AllocateArray<uint8_t>(shape.block_counts[group] * rows.bytes()));
      memory.push_back({rows, data});
      AllowRaces(data, rows.bytes());  // scratch: rows without a block of their own write there
      if (rows.kind != CacheRow::kLatent) cache.AddV4Rows(memory.back(), tables[group]);
    }
  }
  for (int level = 0; level < shape.level_count; ++level) {
    ASSIGN_OR_RETURN(float* const memory,
                     device.AllocateArray<float>(size_t(shape.block_counts[0]) * shape.boundary_width));
    cache.boundaries_.push_back(Dense(memory, shape.block_counts[0], shape.boundary_width));
  }
  const auto stream = device.CreateStream();
  if (poison) cache.Poison(device, *stream);
  stream->Synchronize();
  return cache;
}

void KvCache::AddV4Rows(const RowMemory& memory, const GroupTable& table) {
  const LayerRows& rows = memory.rows;
  v4_layers_.resize(std::max(v4_layers_.size(), size_t(rows.layer) + 1));
  V4LayerCache& layer = v4_layers_[rows.layer];
  const auto set = [&](auto& view) {
    using T = std::remove_pointer_t<decltype(view.data)>;
    view = {.data = reinterpret_cast<T*>(memory.data),
            .block_tables = table.entries,
            .table_stride = table.stride,
            .rows_per_block = rows.rows_per_block,
            .width = rows.row_bytes / static_cast<int>(sizeof(T))};
  };
  switch (rows.kind) {
    case CacheRow::kKey:
      return set(layer.keys);
    case CacheRow::kEntry:
      return set(layer.entries);
    case CacheRow::kIndexEntry:
      return set(layer.index_entries);
    case CacheRow::kState:
      return set(layer.state);
    case CacheRow::kIndexState:
      return set(layer.index_state);
    case CacheRow::kLatent:
      break;
  }
  CHECK(false) << "rows of layer " << rows.layer << " are not DeepSeek-V4's";
}

void KvCache::Poison(Device& device, Stream& stream) const {
  for (size_t group = 0; group < memory_.size(); ++group) {
    for (const RowMemory& memory : memory_[group]) {
      // NaN as BF16, as FP32, as an E4M3 code and as a scale.
      const std::vector<uint8_t> nan_block(memory.rows.bytes(), 0xff);
      for (int block = 0; block < shape_.block_counts[group]; ++block) {
        device.CopyToDevice(stream, memory.data + block * memory.rows.bytes(), nan_block.data(),
                            nan_block.size());
      }
    }
  }
}

KvLayer KvCache::layer(int index) const {
  return {.data = memory_[0][index].data,
          .block_tables = history_table_.entries,
          .table_stride = history_table_.stride,
          .block_count = shape_.block_counts[0],
          .tokens_per_block = shape_.tokens_per_block(),
          .latent_dim = shape_.latent_dim,
          .rope_dim = shape_.rope_dim,
          .dtype = shape_.dtype};
}

// Calls copy(device, host, bytes) for each piece of the block that lies in one frame.
template <class Copy>
void KvCache::ForEachPiece(int group, int block, const HostFrames& host, const Copy& copy) const {
  size_t offset = 0;
  for (const RowMemory& memory : memory_[group]) {
    const int64_t bytes = memory.rows.bytes();
    uint8_t* const device = memory.data + block * bytes;
    host.ForEachPiece(offset, bytes,
                      [&](size_t done, uint8_t* frame, size_t count) { copy(device + done, frame, count); });
    offset += bytes;
  }
}

void KvCache::CopyBlockToHost(Device& device, Stream& stream, int group, int block,
                              const HostFrames& host) const {
  ForEachPiece(group, block, host, [&](const uint8_t* from, uint8_t* to, size_t bytes) {
    device.CopyToHost(stream, to, from, bytes);
  });
}

void KvCache::CopyBlockToDevice(Device& device, Stream& stream, int group, int block,
                                const HostFrames& host) const {
  ForEachPiece(group, block, host, [&](uint8_t* to, const uint8_t* from, size_t bytes) {
    device.CopyPinnedToDevice(stream, to, from, bytes);
  });
}

}  // namespace foredraft
