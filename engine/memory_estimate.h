#pragma once

// Estimates the memory that a rank will take on its device, from the shape of the model and the options
// alone: without checkpoint or GPU. The engine itself is allocated on a device that only counts
// (kernels/devices/sizing_device.h), so weights, activations and slots are exact. The rest is assumed and
// marked so: no GPU has been measured.

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/cache/kv_cache.h"
#include "engine/engine_options.h"
#include "engine/model/model_config.h"
#include "kernels/devices/sizing_device.h"

namespace foredraft {

struct MemoryEstimate {
  // Exact.
  int64_t weight_bytes = 0;
  int64_t activation_bytes = 0;
  int64_t slot_bytes = 0;   // per-sequence state: sampling, penalties, block tables, boundaries
  int64_t graph_count = 0;  // captured decode steps
  int64_t graph_nodes = 0;  // ops of the largest one
  KvCacheShape cache;       // the history has one block, the other groups as many as the engine gives them
  int sequence_blocks = 0;  // of the history, of one request of max_seq_len
  // Assumed; all 0 on the CPU.
  int64_t graph_bytes = 0;
  int64_t workspace_bytes = 0;  // memory that ops allocate at their first run
  int64_t library_bytes = 0;    // CUDA's context and modules; with several ranks NCCL's buffers

  int64_t fixed_bytes() const {
    return weight_bytes + activation_bytes + slot_bytes + workspace_bytes + library_bytes;
  }
  // Bytes of one block of the history, with its boundary.
  int64_t block_bytes() const { return cache.block_bytes() + cache.boundary_bytes(); }
  // Bytes of a cache with `blocks` blocks of the history.
  int64_t cache_bytes(int64_t blocks) const { return blocks * block_bytes() + cache.window_bytes(); }
};

// The memory of the rank of options.layout that holds the most. No rank has more experts than rank 0; where
// heads are cut, another rank of its tensor group may have more heads.
absl::StatusOr<MemoryEstimate> EstimateMemory(SizedBackend backend, const EngineOptions& options,
                                              const ModelConfig& config);

// The history's blocks that fit a device of `device_bytes`, scratch included, as the engine sizes its cache
// (BlocksThatFit). RESOURCE_EXHAUSTED, with the arithmetic, where not even one request of max_seq_len fits.
absl::StatusOr<int> BlocksOn(int64_t device_bytes, const MemoryEstimate& memory,
                             const EngineOptions& options);

// The smallest device on which BlocksOn finds room for one request of max_seq_len.
int64_t SmallestDevice(const MemoryEstimate& memory, const EngineOptions& options);

}  // namespace foredraft
