#pragma once

// What a request changes in the logits before a token is chosen, in this order: tokens that would end the
// output too early are excluded; biases are added; penalties are applied. Repetition counts prompt and
// output, presence and frequency the output alone. Too early means before min_tokens, or in a thought that a
// grammar follows. The slot's state before the step decides for all rows of the step whether they are in such
// a thought: rows past its end are dropped (docs/structured-output.md section 5).

#include <limits>

#include "kernels/slot_arrays.h"

namespace foredraft {

constexpr bool HasPenalties(const SlotConstants& c) {
  return c.repetition_penalty != 1.0f || c.presence_penalty != 0.0f || c.frequency_penalty != 0.0f;
}

// The number of stop ids, counted from the first, that the token for `position` must not be.
constexpr int32_t ExcludedStops(const SlotConstants& c, const SlotProgress& progress, int32_t position) {
  if (position < c.first_stop_position) return c.stop_id_count;
  return progress.gate == Gate::kThinking ? c.barred_stop_count : 0;
}

// Whether the logits for `position` are changed at all.
constexpr bool AdjustsLogits(const SlotConstants& c, const SlotProgress& progress, int32_t position) {
  return HasPenalties(c) || c.bias_count > 0 || ExcludedStops(c, progress, position) > 0;
}

// Whether `id` is one of the first `count` stop ids.
constexpr bool IsStopId(const SlotConstants& c, int32_t count, int32_t id) {
  for (int32_t i = 0; i < count; ++i) {
    if (c.stop_ids[i] == id) return true;
  }
  return false;
}

// The logit with the request's bias for the token, if it has one.
constexpr float Biased(const SlotConstants& c, float logit, int32_t id) {
  int32_t first = 0;
  int32_t end = c.bias_count;
  while (first < end) {
    const int32_t middle = (first + end) / 2;
    if (c.biases[middle].token_id < id) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first < c.bias_count && c.biases[first].token_id == id ? logit + c.biases[first].bias : logit;
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

// The logits of one row, adjusted for the choice of the token for `position`.
struct AdjustedLogits {
  const SlotConstants* constants;
  const int32_t* counts;     // [vocab], read where there are penalties
  const uint8_t* in_prompt;  // [vocab], read where there are penalties
  DraftHistory history;
  bool penalises;
  int32_t excluded_stops;
  bool applies;  // false: the logits stay as they are

  constexpr AdjustedLogits(const SlotArrays& slots, int32_t slot, int32_t position,
                           const DraftHistory& drafts)
      : constants(slots.constants + slot),
        counts(slots.output_counts + static_cast<int64_t>(slot) * slots.vocab_size),
        in_prompt(slots.prompt_seen + static_cast<int64_t>(slot) * slots.vocab_size),
        history(drafts),
        penalises(HasPenalties(*constants)),
        excluded_stops(ExcludedStops(*constants, slots.progress[slot], position)),
        applies(AdjustsLogits(*constants, slots.progress[slot], position)) {}

  constexpr float operator()(int32_t v, float logit) const {
    if (!applies) return logit;
    if (IsStopId(*constants, excluded_stops, v)) return -std::numeric_limits<float>::infinity();
    if (constants->bias_count > 0) logit = Biased(*constants, logit, v);
    if (!penalises) return logit;
    return Penalised(*constants, logit, in_prompt[v] != 0, counts[v] + history.Count(v));
  }
};

}  // namespace foredraft
