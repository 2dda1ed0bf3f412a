#include "engine/cache/kv_cache.h"

#include <algorithm>
#include <utility>

#include "base/benign_race.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {

absl::StatusOr<KvCache> KvCache::Create(Device& device, const KvCacheShape& shape,
                                        std::span<const CacheGroupTable> tables, bool poison) {
  CHECK_EQ(tables.size(), shape.groups.size());
  KvCache cache;
  cache.shape_ = shape;
  cache.tables_.assign(tables.begin(), tables.end());
  for (size_t group = 0; group < shape.groups.size(); ++group) {
    std::vector<RowMemory>& memory = cache.memory_.emplace_back();
    for (const BlockRows& rows : shape.groups[group].rows) {
      ASSIGN_OR_RETURN(uint8_t* const data,
                       device.AllocateArray<uint8_t>(shape.block_counts[group] * rows.bytes()));
      memory.push_back({rows, data});
      AllowRaces(data, rows.bytes());  // scratch: rows without a block of their own write there
    }
  }
  for (const SlotRow& row : shape.boundaries) {
    ASSIGN_OR_RETURN(float* const memory,
                     device.AllocateArray<float>(size_t(shape.block_counts[0]) * row.width));
    cache.boundaries_.push_back(Dense(memory, shape.block_counts[0], row.width));
  }
  const auto stream = device.CreateStream();
  if (poison) cache.Poison(device, *stream);
  stream->Synchronize();
  return cache;
}

Matrix<float> KvCache::boundary(std::string_view name) const {
  for (size_t i = 0; i < boundaries_.size(); ++i) {
    if (shape_.boundaries[i].name == name) return boundaries_[i];
  }
  CHECK(false) << "no block keeps " << name;
}

void KvCache::Poison(Device& device, Stream& stream) const {
  for (size_t group = 0; group < memory_.size(); ++group) {
    for (const RowMemory& memory : memory_[group]) {
      // Bytes 0xff are NaN as BF16, as FP32, as an E4M3 code and as a scale.
      const std::vector<uint8_t> nan_block(memory.rows.bytes(), 0xff);
      for (int block = 0; block < shape_.block_counts[group]; ++block) {
        device.CopyToDevice(stream, memory.data + block * memory.rows.bytes(), nan_block.data(),
                            nan_block.size());
      }
    }
  }
}

CachedRows KvCache::rows(CacheHandle handle) const {
  CHECK_LT(static_cast<size_t>(handle.group), memory_.size());
  CHECK_LT(static_cast<size_t>(handle.index), memory_[handle.group].size());
  const RowMemory& memory = memory_[handle.group][handle.index];
  const CacheGroupTable& table = tables_[handle.group];
  return {.data = memory.data,
          .block_tables = table.entries,
          .table_stride = table.stride,
          .block_count = shape_.block_counts[handle.group],
          .rows_per_block = memory.rows.rows_per_block,
          .row_bytes = memory.rows.row_bytes,
          .format = memory.rows.format};
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
