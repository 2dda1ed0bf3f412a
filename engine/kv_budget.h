#pragma once

// How many blocks of the history a device has room for, once everything else is allocated. Pure.

#include "absl/status/statusor.h"
#include "engine/kv_cache.h"
#include "kernels/device.h"

namespace foredraft {

// The number of blocks, scratch included, that fit in `fraction` of the free memory after graph_bytes for the
// captured steps, once the other cache groups have the blocks of `shape`. RESOURCE_EXHAUSTED, with the
// arithmetic, if they do not hold one sequence of sequence_blocks.
absl::StatusOr<int> BlocksThatFit(const DeviceMemory& memory, int64_t graph_bytes, double fraction,
                                  const KvCacheShape& shape, int sequence_blocks);

}  // namespace foredraft
