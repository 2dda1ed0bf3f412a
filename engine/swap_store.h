#ifndef FOREDRAFT_ENGINE_SWAP_STORE_H_
#define FOREDRAFT_ENGINE_SWAP_STORE_H_

// Host memory of preempted sequences: the bytes of their blocks and their slot state, by image id. The
// scheduler decides what fits; the store only checks. Copies run in stream order, to and from page-locked
// frames, and no thread waits for them: a free frame is written again only by a later copy of the same
// stream. Owner: RankEngine. Thread: the one that submits plans.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/kv_cache.h"
#include "engine/slot_state.h"

namespace foredraft {

class SwapStore {
 public:
  // Room for the blocks that capacity_bytes hold; slot images are not counted. `device` outlives the store.
  static absl::StatusOr<SwapStore> Create(Device& device, int64_t capacity_bytes, int64_t block_bytes,
                                          size_t slot_image_bytes);

  // The slot itself is left as it was.
  void SwapOut(Stream& stream, const SwapOut& swap, const KvCache& cache, SlotState& slots);
  // The image is freed.
  void SwapIn(Stream& stream, const SwapIn& swap, const KvCache& cache, SlotState& slots);
  void Drop(uint64_t image_id);

  int64_t used_bytes() const { return used_blocks_ * block_bytes_; }
  size_t image_count() const { return images_.size(); }

 private:
  struct Image {
    SlotFacts facts;
    uint8_t* slot = nullptr;       // [slot_image_bytes]
    std::vector<uint8_t*> blocks;  // each [block_bytes]
  };

  uint8_t* TakeSlotFrame();

  Device* device_ = nullptr;
  int64_t block_bytes_ = 0;
  size_t slot_image_bytes_ = 0;
  int64_t used_blocks_ = 0;
  std::vector<uint8_t*> free_blocks_;
  std::vector<uint8_t*> free_slots_;
  absl::flat_hash_map<uint64_t, Image> images_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_SWAP_STORE_H_
