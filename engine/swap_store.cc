#include "engine/swap_store.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

// How many sequences are swapped at once depends on their lengths, so more frames are allocated when needed.
// This is the one allocation while serving, and it is host memory.
constexpr int kSlotFramesAtOnce = 16;

absl::Status AddFrames(Device& device, size_t frame_bytes, int64_t count, std::vector<uint8_t*>& frames) {
  const size_t stride = (frame_bytes + 63) / 64 * 64;
  ASSIGN_OR_RETURN(uint8_t* const memory, device.AllocatePinnedArray<uint8_t>(stride * count));
  for (int64_t i = count - 1; i >= 0; --i) frames.push_back(memory + i * stride);
  return absl::OkStatus();
}

uint8_t* Take(std::vector<uint8_t*>& frames) {
  uint8_t* const frame = frames.back();
  frames.pop_back();
  return frame;
}

}  // namespace

absl::StatusOr<SwapStore> SwapStore::Create(Device& device, int64_t capacity_bytes, int64_t block_bytes,
                                            size_t slot_image_bytes) {
  SwapStore store;
  store.device_ = &device;
  store.block_bytes_ = block_bytes;
  store.slot_image_bytes_ = slot_image_bytes;
  const int64_t block_count = capacity_bytes / block_bytes;
  if (block_count == 0) return store;
  RETURN_IF_ERROR(AddFrames(device, block_bytes, block_count, store.free_blocks_));
  RETURN_IF_ERROR(AddFrames(device, slot_image_bytes, kSlotFramesAtOnce, store.free_slots_));
  return store;
}

uint8_t* SwapStore::TakeSlotFrame() {
  if (free_slots_.empty()) {
    const absl::Status status = AddFrames(*device_, slot_image_bytes_, kSlotFramesAtOnce, free_slots_);
    CHECK(status.ok()) << status.message();
  }
  return Take(free_slots_);
}

void SwapStore::SwapOut(Stream& stream, const foredraft::SwapOut& swap, const KvCache& cache,
                        SlotState& slots) {
  CHECK_LE(swap.block_ids.size(), free_blocks_.size()) << "image " << swap.image_id;
  Image image;
  for (const int32_t block : swap.block_ids) {
    image.blocks.push_back(Take(free_blocks_));
    cache.CopyBlockToHost(*device_, stream, block, image.blocks.back());
  }
  image.slot = TakeSlotFrame();
  image.facts = slots.SwapOut(stream, swap.slot, image.slot);
  used_blocks_ += static_cast<int64_t>(image.blocks.size());
  CHECK(images_.emplace(swap.image_id, std::move(image)).second)
      << "image " << swap.image_id << " stored twice";
}

void SwapStore::SwapIn(Stream& stream, const foredraft::SwapIn& swap, const KvCache& cache,
                       SlotState& slots) {
  const auto found = images_.find(swap.image_id);
  CHECK(found != images_.end()) << "image " << swap.image_id;
  Image& image = found->second;
  CHECK_EQ(image.blocks.size(), swap.block_ids.size()) << "image " << swap.image_id;
  for (size_t i = 0; i < swap.block_ids.size(); ++i) {
    cache.CopyBlockToDevice(*device_, stream, swap.block_ids[i], image.blocks[i]);
  }
  slots.SwapIn(stream, swap.slot, image.slot, std::move(image.facts));
  Drop(swap.image_id);
}

void SwapStore::Drop(uint64_t image_id) {
  const auto found = images_.find(image_id);
  CHECK(found != images_.end()) << "image " << image_id;
  Image& image = found->second;
  used_blocks_ -= static_cast<int64_t>(image.blocks.size());
  free_blocks_.insert(free_blocks_.end(), image.blocks.begin(), image.blocks.end());
  free_slots_.push_back(image.slot);
  images_.erase(found);
}

}  // namespace foredraft
