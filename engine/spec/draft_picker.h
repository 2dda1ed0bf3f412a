#pragma once

// Turns logits into a draft, for every drafter: chooses as the target does, with the noise of the draft's
// position (docs/speculation.md section 2), so that sampled drafts match often. Owner: a drafter.

#include "absl/status/statusor.h"
#include "engine/spec/drafter.h"
#include "engine/spec/step_context.h"

namespace foredraft {

class DraftPicker {
 public:
  static absl::StatusOr<DraftPicker> Create(Device& device, int bucket);

  // Picks draft `draft_index` (from 1) of each sequence, into the slots' drafts and draft_ids(). logits:
  // [bucket, V], at the drafts' positions. Overwrites buffers.sample_scratch.
  void Pick(const StepContext& step, const DraftInput& input, int draft_index,
            Matrix<const float> logits) const;

  // [bucket]: the last drafts picked.
  const int32_t* draft_ids() const { return draft_ids_; }

 private:
  RowBuffers rows_;  // [B]
  int32_t* draft_ids_ = nullptr;
};

}  // namespace foredraft
