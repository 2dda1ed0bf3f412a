#ifndef FOREDRAFT_ENGINE_SWAP_STORE_H_
#define FOREDRAFT_ENGINE_SWAP_STORE_H_

// Host memory of preempted sequences: the bytes of their blocks and their slot state, by image id. It is one
// page-locked allocation, made at the start, in frames of a block's size: an image takes a frame for each of
// its blocks and a few for the slot state. The scheduler decides what fits; the store only checks. Copies run
// in stream order, and no thread waits for them: a free frame is written again only by a later copy of the
// same stream. Owner: RankEngine. Thread: the one that submits plans.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "engine/engine_options.h"
#include "engine/kv_cache.h"
#include "engine/slot_state.h"

namespace foredraft {

// The sizes of a store. Pure; the scheduler's come from it too.
struct SwapStoreShape {
  int64_t capacity_bytes = 0;
  int64_t block_bytes = 0;
  int64_t slot_image_bytes = 0;

  static SwapStoreShape Of(const EngineOptions& options, const ModelConfig& config);

  int64_t frame_bytes() const { return (block_bytes + 63) / 64 * 64; }
  int64_t frame_count() const { return capacity_bytes / frame_bytes(); }
  // That a sequence's slot state takes.
  int64_t slot_frames() const { return (slot_image_bytes + frame_bytes() - 1) / frame_bytes(); }
};

class SwapStore {
 public:
  // Allocates capacity_bytes, rounded down to frames. RESOURCE_EXHAUSTED names the configuration's key.
  // `device` outlives the store.
  static absl::StatusOr<SwapStore> Create(Device& device, const SwapStoreShape& shape);

  // The slot itself is left as it was.
  void SwapOut(Stream& stream, const SwapOut& swap, const KvCache& cache, SlotState& slots);
  // The image is freed.
  void SwapIn(Stream& stream, const SwapIn& swap, const KvCache& cache, SlotState& slots);
  void Drop(uint64_t image_id);

  int64_t used_bytes() const { return used_frames_ * shape_.frame_bytes(); }
  size_t image_count() const { return images_.size(); }

 private:
  // Frames of [frame_bytes] each.
  struct Image {
    SlotFacts facts;
    std::vector<uint8_t*> slot;    // [slot_frames]
    std::vector<uint8_t*> blocks;  // in position order
  };

  std::vector<uint8_t*> Take(size_t count);
  SlotImage SlotImageOf(const Image& image) const {
    return {.frames = image.slot, .frame_bytes = static_cast<size_t>(shape_.frame_bytes())};
  }

  Device* device_ = nullptr;
  SwapStoreShape shape_;
  std::vector<uint8_t*> free_frames_;
  int64_t used_frames_ = 0;
  absl::flat_hash_map<uint64_t, Image> images_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_SWAP_STORE_H_
