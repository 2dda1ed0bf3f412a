#pragma once

// MTP Vanilla: Kmax modules in sequence, as trained (docs/speculation.md section 4). Every step, whatever K,
// every module runs a window of Kmax + 1 rows. Not K rows: after a fully accepted step, rows of the higher
// modules would never be written.

#include "engine/spec/drafter.h"

namespace foredraft {

class VanillaDrafter : public Drafter {
 public:
  void FirstDraft(const Rank& rank, const DraftInput& input, bool make_draft) const override;
  void Draft(const Rank& rank, const DraftInput& input, int draft_count) const override;
};

}  // namespace foredraft
