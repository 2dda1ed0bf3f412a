#include "engine/cache/block_tables.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "scheduler/plan.h"

namespace foredraft {

absl::StatusOr<BlockTables> BlockTables::Create(Device& device, int slot_count, int stride) {
  BlockTables tables;
  const size_t entries = size_t(slot_count) * stride;
  tables.stride_ = stride;
  ASSIGN_OR_RETURN(tables.device_entries_, device.AllocateArray<int32_t>(entries));
  tables.host_.assign(entries, kScratchBlock);
  tables.dirty_.assign(slot_count, {});
  return tables;
}

void BlockTables::Set(int slot, int first_index, std::span<const int32_t> block_ids) {
  const int last = first_index + static_cast<int>(block_ids.size());
  CHECK_LE(last, stride_) << "slot " << slot;
  std::copy(block_ids.begin(), block_ids.end(), host_.begin() + size_t(slot) * stride_ + first_index);
  MarkDirty(slot, first_index, last);
}

void BlockTables::Clear(int slot) {
  std::fill_n(host_.begin() + size_t(slot) * stride_, stride_, kScratchBlock);
  MarkDirty(slot, 0, stride_);
}

void BlockTables::MarkDirty(int slot, int first, int last) {
  DirtyEntries& dirty = dirty_[slot];
  dirty.first = dirty.last == 0 ? first : std::min(dirty.first, first);
  dirty.last = std::max(dirty.last, last);
}

void BlockTables::Flush(Device& device, Stream& stream) {
  constexpr size_t kSlackEntries = 1024;  // unchanged entries that a copy may include to save another
  size_t first = 0;
  size_t last = 0;  // [first, last): the run to copy next; empty at first
  const auto copy_run = [&] {
    if (last > first) {
      device.CopyToDevice(stream, device_entries_ + first, host_.data() + first,
                          (last - first) * sizeof(int32_t));
    }
  };
  for (size_t slot = 0; slot < dirty_.size(); ++slot) {
    DirtyEntries& dirty = dirty_[slot];
    if (dirty.last == 0) continue;
    const size_t row = slot * stride_;
    if (last == 0 || row + dirty.first > last + kSlackEntries) {
      copy_run();
      first = row + dirty.first;
    }
    last = row + dirty.last;
    dirty = {};
  }
  copy_run();
}

}  // namespace foredraft
