#pragma once

// The bytes of a rank's cache, in groups of blocks (engine/cache/cache_groups.h): a block has the rows of
// tokens_per_block positions of every layer of its group, target and MTP. Blocks of group 0, the history,
// also have the boundary of their last position (docs/speculation.md section 0). The scheduler decides which
// sequence has which blocks. Owner: Rank. Thread: the one that submits plans.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/cache_groups.h"
#include "engine/cache/host_frames.h"
#include "engine/cache/kv_cache_shape.h"
#include "kernels/device.h"

namespace foredraft {

// A group's block table of every slot, in device memory.
struct CacheGroupTable {
  const int32_t* entries = nullptr;  // [slots, stride]
  int32_t stride = 0;
};

// Registered rows in device memory. Position s of a slot is in block block_tables[slot * table_stride + s /
// tokens_per_block]; a block has the rows of its positions in order.
struct CachedRows {
  uint8_t* data = nullptr;                // [block_count, rows_per_block, row_bytes]
  const int32_t* block_tables = nullptr;  // [slots, table_stride]
  int32_t table_stride = 0;
  int32_t block_count = 0;  // scratch included
  int32_t rows_per_block = 0;
  int32_t row_bytes = 0;
  KvFormat format;
};

class KvCache {
 public:
  // tables: one per group; their memory outlives the cache. poison: fills all rows with NaN.
  static absl::StatusOr<KvCache> Create(Device& device, const KvCacheShape& shape,
                                        std::span<const CacheGroupTable> tables, bool poison);

  // The rows that were registered with this handle.
  CachedRows rows(CacheHandle handle) const;
  const KvCacheShape& shape() const { return shape_; }

  const CacheGroupTable& history_table() const { return tables_.front(); }

  // The row of this name that each history block keeps: [block_count, width].
  Matrix<float> boundary(std::string_view name) const;

  // Copy one block, all layers of it, to or from `host`, which is written or read when the stream reaches the
  // copy.
  void CopyBlockToHost(Device& device, Stream& stream, int group, int block, const HostFrames& host) const;
  void CopyBlockToDevice(Device& device, Stream& stream, int group, int block, const HostFrames& host) const;

  // Fills all rows with NaN.
  void Poison(Device& device, Stream& stream) const;

 private:
  // The memory of some rows: [block_count of their group, rows.bytes()].
  struct RowMemory {
    BlockRows rows;
    uint8_t* data = nullptr;
  };

  template <class Copy>
  void ForEachPiece(int group, int block, const HostFrames& host, const Copy& copy) const;

  KvCacheShape shape_;
  std::vector<std::vector<RowMemory>> memory_;  // of each group
  std::vector<Matrix<float>> boundaries_;       // of each of shape_.boundaries
  std::vector<CacheGroupTable> tables_;         // of each group
};

}  // namespace foredraft
