#pragma once

// MTP Eagle: module 1, recycled (docs/speculation.md section 3). The first forward rewrites, with the
// target's true outputs, what recycled rows wrote in the step before; each further draft feeds the module its
// own output after shared_head.norm.

#include "engine/spec/drafter.h"

namespace foredraft {

class EagleDrafter : public Drafter {
 public:
  void FirstDraft(const Rank& rank, const DraftInput& input, bool make_draft) const override;
  void Draft(const Rank& rank, const DraftInput& input, int draft_count) const override;
};

}  // namespace foredraft
