#ifndef FOREDRAFT_ENGINE_SWAP_STORE_H_
#define FOREDRAFT_ENGINE_SWAP_STORE_H_

// Host memory of preempted sequences: the bytes of their blocks and their slot state, by image id. The
// scheduler counts what fits; the store only checks. Owner: the executor. Thread: the executor's.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/kv_cache.h"
#include "engine/slot_state.h"

namespace foredraft {

class SwapStore {
 public:
  explicit SwapStore(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // The slot's blocks and state are in the store when this returns; the slot itself is left as it was.
  void SwapOut(Device& device, Stream& stream, const SwapOut& swap, const KvCache& cache, SlotState& slots);
  // The image is freed.
  void SwapIn(Device& device, Stream& stream, const SwapIn& swap, const KvCache& cache, SlotState& slots);
  void Drop(uint64_t image_id);

  int64_t used_bytes() const { return used_bytes_; }
  size_t image_count() const { return images_.size(); }

 private:
  struct Image {
    SlotImage slot;
    std::vector<uint8_t> blocks;  // [block count, block_bytes]
  };

  const int64_t capacity_bytes_;  // of blocks; slot images are not counted
  int64_t used_bytes_ = 0;
  absl::flat_hash_map<uint64_t, Image> images_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_SWAP_STORE_H_
