#pragma once

// The block tables of one cache group: which block has which part of a sequence, by slot. The host's copy is
// changed by plans and brought to the device in few copies. Owner: SlotState. Thread: the one that submits
// plans.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace foredraft {

class BlockTables {
 public:
  // stride: entries per slot.
  static absl::StatusOr<BlockTables> Create(Device& device, int slot_count, int stride);

  const int32_t* device_entries() const { return device_entries_; }  // [slots, stride]
  int stride() const { return stride_; }

  // Read and write the host's copy. Set writes one entry per block, from first_index on. Clear sets all
  // entries to scratch.
  int block(int slot, int index) const { return host_[size_t(slot) * stride_ + index]; }
  void Set(int slot, int first_index, std::span<const int32_t> block_ids);
  void Clear(int slot);

  // Brings the changes to the device. Changed entries that are near each other go in one copy.
  void Flush(Device& device, Stream& stream);

 private:
  // Entries [first, last) of a slot's table that the device does not have yet.
  struct DirtyEntries {
    int first = 0;
    int last = 0;  // 0 = none
  };
  void MarkDirty(int slot, int first, int last);

  int stride_ = 0;
  int32_t* device_entries_ = nullptr;
  std::vector<int32_t> host_;        // [slots, stride]
  std::vector<DirtyEntries> dirty_;  // [slots]
};

}  // namespace foredraft
