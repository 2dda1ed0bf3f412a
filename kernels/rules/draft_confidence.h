#pragma once

// The part of draft_confidence that the backends share.

#include "kernels/ops/draft_block.h"
#include "kernels/rules/decode_rows.h"

namespace foredraft {

constexpr void StoreConfidence(const DraftConfidenceParams& p, int32_t seat, float logit) {
  StepOutput& output = p.outputs[seat];
  if (output.emitted_count == 0 || !Runs(p.slots, output.slot)) return;
  // NaN fails the first comparison.
  const float least = logit > -kLargestConfidence ? logit : -kLargestConfidence;
  const float bounded = least < kLargestConfidence ? least : kLargestConfidence;
  output.confidences[p.draft_index - 1] = bounded;
  p.slots.drafts[output.slot].confidences[p.draft_index - 1] = bounded;
}

}  // namespace foredraft
