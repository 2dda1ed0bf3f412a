#pragma once

// A row that a part of the engine keeps of each slot between steps, registered by name before the slots are
// created (DrafterKind::slot_rows). SlotState allocates the rows of all slots; admission, swap, poisoning and
// the sizes of images follow from the registration.

#include <cstdint>
#include <string>

namespace foredraft {

struct SlotRow {
  std::string name;
  int width = 0;  // values of 4 bytes: float or int32_t
  // The host has the row as well (SlotState::host_row), zeros after an admission: for rows that are computed
  // from prompts.
  bool on_host = false;
  // Each block of the history keeps such a row too (KvCache::boundary). A sequence that is admitted after a
  // cached prefix gets the row of the prefix's last block. With reuse_generated, decode steps write the
  // blocks' rows as prompts do.
  bool at_boundaries = false;

  int64_t bytes() const { return int64_t{width} * 4; }
};

}  // namespace foredraft
