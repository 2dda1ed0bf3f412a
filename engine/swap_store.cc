#include "engine/swap_store.h"

#include <utility>

#include "base/check.h"

namespace foredraft {

void SwapStore::SwapOut(Device& device, Stream& stream, const foredraft::SwapOut& swap, const KvCache& cache,
                        SlotState& slots) {
  const int64_t block_bytes = cache.shape().block_bytes();
  Image image;
  image.blocks.resize(swap.block_ids.size() * block_bytes);
  for (size_t i = 0; i < swap.block_ids.size(); ++i) {
    cache.CopyBlockToHost(device, stream, swap.block_ids[i], image.blocks.data() + i * block_bytes);
  }
  slots.SwapOut(stream, swap.slot, image.slot);
  stream.Synchronize();
  used_bytes_ += image.blocks.size();
  CHECK_LE(used_bytes_, capacity_bytes_) << "image " << swap.image_id;
  CHECK(images_.emplace(swap.image_id, std::move(image)).second)
      << "image " << swap.image_id << " stored twice";
}

void SwapStore::SwapIn(Device& device, Stream& stream, const foredraft::SwapIn& swap, const KvCache& cache,
                       SlotState& slots) {
  const int64_t block_bytes = cache.shape().block_bytes();
  const auto found = images_.find(swap.image_id);
  CHECK(found != images_.end()) << "image " << swap.image_id;
  const Image& image = found->second;
  CHECK_EQ(image.blocks.size(), swap.block_ids.size() * block_bytes) << "image " << swap.image_id;
  for (size_t i = 0; i < swap.block_ids.size(); ++i) {
    cache.CopyBlockToDevice(device, stream, swap.block_ids[i], image.blocks.data() + i * block_bytes);
  }
  slots.SwapIn(stream, swap.slot, image.slot);
  stream.Synchronize();
  Drop(swap.image_id);
}

void SwapStore::Drop(uint64_t image_id) {
  const auto found = images_.find(image_id);
  CHECK(found != images_.end()) << "image " << image_id;
  used_bytes_ -= found->second.blocks.size();
  images_.erase(found);
}

}  // namespace foredraft
