#pragma once

// The sizes of a rank's cache, and how many blocks of the history a device has room for once everything else
// is allocated. Plain data, pure functions.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/cache_groups.h"
#include "engine/cache/slot_row.h"
#include "kernels/device.h"

namespace foredraft {

struct KvCacheShape {
  std::vector<CacheGroup> groups;   // the history first
  std::vector<int> block_counts;    // of each group, scratch included
  std::vector<SlotRow> boundaries;  // the slot rows of which each history block keeps a copy

  int tokens_per_block() const { return groups[0].tokens_per_block; }  // of the history
  // Bytes of one block of a group in all layers; the boundary is not counted.
  int64_t block_bytes(int group = 0) const { return groups[group].bytes_per_block; }
  // Bytes of one history block's boundary.
  int64_t boundary_bytes() const;
  // Bytes of all groups except the history.
  int64_t window_bytes() const;
  // Bytes of all groups and boundaries.
  int64_t total_bytes() const {
    return block_counts[0] * (block_bytes() + boundary_bytes()) + window_bytes();
  }
};

// The number of history blocks, scratch included, that fit on a device. The cache gets `fraction` of the free
// memory that graph_bytes of captured steps leave; the other groups of `shape` take their blocks first.
// RESOURCE_EXHAUSTED, with the arithmetic, if one sequence of sequence_blocks does not fit.
absl::StatusOr<int> BlocksThatFit(const DeviceMemory& memory, int64_t graph_bytes, double fraction,
                                  const KvCacheShape& shape, int sequence_blocks);

}  // namespace foredraft
