#pragma once

// Penalties on logits: repetition counts prompt and output, presence and frequency the output alone.

#include "kernels/slot_arrays.h"

namespace foredraft {

constexpr bool HasPenalties(const SlotConstants& c) {
  return c.repetition_penalty != 1.0f || c.presence_penalty != 0.0f || c.frequency_penalty != 0.0f;
}

constexpr float Penalised(const SlotConstants& c, float logit, bool in_prompt, int32_t output_count) {
  if (in_prompt || output_count > 0) {
    logit = logit > 0.0f ? logit / c.repetition_penalty : logit * c.repetition_penalty;
  }
  if (output_count > 0) {
    logit -= c.frequency_penalty * static_cast<float>(output_count) + c.presence_penalty;
  }
  return logit;
}

// The drafts before a row: they count as output on top of the slot's own counts.
struct DraftHistory {
  const int32_t* ids = nullptr;
  int32_t count = 0;

  constexpr int32_t Count(int32_t id) const {
    int32_t found = 0;
    for (int32_t i = 0; i < count; ++i) found += ids[i] == id ? 1 : 0;
    return found;
  }
};

// Row r of a decode step counts ids[1..j] of its slot's rows, j = row_in_slot[r] (null = 0).
constexpr DraftHistory EarlierDrafts(const int32_t* ids, const int32_t* row_in_slot, int32_t r) {
  if (row_in_slot == nullptr) return {};
  return {ids + r - row_in_slot[r] + 1, row_in_slot[r]};
}

}  // namespace foredraft
