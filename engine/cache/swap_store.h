#pragma once

// Host memory of preempted sequences: the bytes of their blocks and their slot state, by image id. It is one
// page-locked allocation, made at the start and divided into frames of the smallest block's size. An image
// takes whole frames for each of its blocks (one per block with a single cache group), and a few for the slot
// state. The scheduler decides what fits; the store only checks. Copies run in stream order, and no thread
// waits for them: a freed frame is written again only by a later copy of the same stream. Owner: RankEngine.
// Thread: the one that submits plans.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/cache/host_frames.h"
#include "engine/cache/kv_cache.h"
#include "engine/cache/slot_state.h"

namespace foredraft {

// The sizes of a store. Pure; the scheduler takes its sizes from here, too.
struct SwapStoreShape {
  int64_t capacity_bytes = 0;
  std::vector<int64_t> block_bytes;  // of a block of each cache group
  int64_t slot_image_bytes = 0;

  int64_t frame_bytes() const;
  int64_t frame_count() const { return capacity_bytes / frame_bytes(); }
  // Frames that a sequence's slot state takes.
  int64_t slot_frames() const { return FramesOf(slot_image_bytes); }
  // Frames that a block of `group` takes.
  int64_t block_frames(int group) const { return FramesOf(block_bytes[group]); }

 private:
  int64_t FramesOf(int64_t bytes) const { return (bytes + frame_bytes() - 1) / frame_bytes(); }
};

class SwapStore {
 public:
  // Allocates capacity_bytes, rounded down to frames. RESOURCE_EXHAUSTED names the configuration's key.
  // `device` outlives the store.
  static absl::StatusOr<SwapStore> Create(Device& device, const SwapStoreShape& shape);

  // Copies the sequence to a new image; the slot stays as it is.
  void SwapOut(Stream& stream, const SwapOut& swap, const KvCache& cache, SlotState& slots);
  // Copies the image to the slot and frees the image.
  void SwapIn(Stream& stream, const SwapIn& swap, const KvCache& cache, SlotState& slots);
  void Drop(uint64_t image_id);

  int64_t used_bytes() const { return used_frames_ * shape_.frame_bytes(); }
  size_t image_count() const { return images_.size(); }

 private:
  // Frames of [frame_bytes] each.
  struct Image {
    HostSlotState host;
    std::vector<uint8_t*> slot;    // [slot_frames]
    std::vector<uint8_t*> blocks;  // [block_frames] of each block, in the plan's order
  };

  // How many frames these blocks take.
  size_t FramesOf(std::span<const CacheGroupBlocks> blocks) const;
  // Calls copy(group, block, frames) for each block of an image.
  template <class Copy>
  void ForEachBlock(const Image& image, std::span<const CacheGroupBlocks> blocks, const Copy& copy) const;
  std::vector<uint8_t*> Take(size_t count);
  HostFrames FramesOf(std::span<uint8_t* const> frames) const {
    return {.frames = frames, .frame_bytes = static_cast<size_t>(shape_.frame_bytes())};
  }

  Device* device_ = nullptr;
  SwapStoreShape shape_;
  std::vector<uint8_t*> free_frames_;
  int64_t used_frames_ = 0;
  absl::flat_hash_map<uint64_t, Image> images_;
};

}  // namespace foredraft
