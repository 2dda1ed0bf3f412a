#include "engine/cache/swap_store.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace foredraft {

int64_t SwapStoreShape::frame_bytes() const {
  int64_t smallest = 0;
  for (const int64_t bytes : block_bytes) {
    if (bytes > 0 && (smallest == 0 || bytes < smallest)) smallest = bytes;
  }
  return (smallest + 63) / 64 * 64;
}

absl::StatusOr<SwapStore> SwapStore::Create(Device& device, const SwapStoreShape& shape) {
  SwapStore store;
  store.device_ = &device;
  store.shape_ = shape;
  const int64_t frames = shape.frame_count();
  if (frames == 0) return store;
  const auto memory = device.AllocatePinnedArray<uint8_t>(static_cast<size_t>(frames * shape.frame_bytes()));
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(absl::StrFormat("kv_cache_config.host_cache_size: %d: %s",
                                                        shape.capacity_bytes, memory.status().message()));
  }
  for (int64_t i = frames - 1; i >= 0; --i) store.free_frames_.push_back(*memory + i * shape.frame_bytes());
  return store;
}

std::vector<uint8_t*> SwapStore::Take(size_t count) {
  CHECK_LE(count, free_frames_.size());
  std::vector<uint8_t*> frames(free_frames_.end() - static_cast<ptrdiff_t>(count), free_frames_.end());
  free_frames_.resize(free_frames_.size() - count);
  used_frames_ += static_cast<int64_t>(count);
  return frames;
}

size_t SwapStore::FramesOf(std::span<const CacheGroupBlocks> blocks) const {
  size_t frames = 0;
  for (const CacheGroupBlocks& group : blocks)
    frames += group.block_ids.size() * shape_.block_frames(group.group);
  return frames;
}

template <class Copy>
void SwapStore::ForEachBlock(const Image& image, std::span<const CacheGroupBlocks> blocks,
                             const Copy& copy) const {
  std::span<uint8_t* const> left = image.blocks;
  for (const CacheGroupBlocks& group : blocks) {
    const size_t frames = static_cast<size_t>(shape_.block_frames(group.group));
    for (const int32_t block : group.block_ids) {
      copy(group.group, block, FramesOf(left.first(frames)));
      left = left.subspan(frames);
    }
  }
}

void SwapStore::SwapOut(Stream& stream, const foredraft::SwapOut& swap, const KvCache& cache,
                        SlotState& slots) {
  const size_t slot_frames = static_cast<size_t>(shape_.slot_frames());
  const size_t block_frames = FramesOf(swap.blocks);
  CHECK_LE(block_frames + slot_frames, free_frames_.size()) << "image " << swap.image_id;
  Image image = {.host = {}, .slot = Take(slot_frames), .blocks = Take(block_frames)};
  ForEachBlock(image, swap.blocks, [&](int group, int block, const HostFrames& frames) {
    cache.CopyBlockToHost(*device_, stream, group, block, frames);
  });
  image.host = slots.SwapOut(stream, swap.slot, FramesOf(image.slot));
  CHECK(images_.emplace(swap.image_id, std::move(image)).second)
      << "image " << swap.image_id << " stored twice";
}

void SwapStore::SwapIn(Stream& stream, const foredraft::SwapIn& swap, const KvCache& cache,
                       SlotState& slots) {
  const auto found = images_.find(swap.image_id);
  CHECK(found != images_.end()) << "image " << swap.image_id;
  Image& image = found->second;
  CHECK_EQ(image.blocks.size(), FramesOf(swap.blocks)) << "image " << swap.image_id;
  ForEachBlock(image, swap.blocks, [&](int group, int block, const HostFrames& frames) {
    cache.CopyBlockToDevice(*device_, stream, group, block, frames);
  });
  slots.SwapIn(stream, swap.slot, FramesOf(image.slot), std::move(image.host));
  Drop(swap.image_id);
}

void SwapStore::Drop(uint64_t image_id) {
  const auto found = images_.find(image_id);
  CHECK(found != images_.end()) << "image " << image_id;
  for (const std::vector<uint8_t*>* frames : {&found->second.slot, &found->second.blocks}) {
    free_frames_.insert(free_frames_.end(), frames->begin(), frames->end());
    used_frames_ -= static_cast<int64_t>(frames->size());
  }
  images_.erase(found);
}

}  // namespace foredraft
