#pragma once

// The end of a thought whose budget is spent. A row's token is then the next of the sequence's end ids
// instead of the model's choice. Only the tokens before the row decide this: drafts, batch, overlap, ranks
// and swaps do not matter.

#include "config/gate_rule.h"
#include "kernels/logit_adjustments.h"
#include "kernels/slot_arrays.h"

namespace foredraft {

// The token that a slot has to emit next, at `thought`; kNoToken: the model's choice.
constexpr int32_t ForcedToken(const SlotConstants& constants, const ThoughtState& thought) {
  if (constants.thought_end_count == 0 || thought.phase != Phase::kThinking) return kNoToken;
  if (thought.count < constants.thought_limit) return kNoToken;
  const int32_t index = thought.count - constants.thought_limit;
  const int32_t last = constants.thought_end_count - 1;
  return constants.thought_end_ids[index < last ? index : last];
}

// Whether a row of the slot may choose only what a mask allows. Such a row is never forced.
constexpr bool IsMasked(const SlotArrays& slots, int32_t slot) {
  return slots.constants[slot].constrained != 0 && slots.progress[slot].gate == Gate::kBehind;
}

// The token that the row after the slot's committed tokens and these drafts has to emit; kNoToken: the
// model's choice.
constexpr int32_t ForcedBehind(const SlotArrays& slots, int32_t slot, const DraftHistory& drafts) {
  const SlotConstants& constants = slots.constants[slot];
  if (constants.thought_end_count == 0 || IsMasked(slots, slot)) return kNoToken;
  ThoughtState thought = slots.progress[slot].thought;
  for (int32_t i = 0; i < drafts.count; ++i) thought = thought.After(constants.thinking, drafts.ids[i]);
  return ForcedToken(constants, thought);
}

}  // namespace foredraft
