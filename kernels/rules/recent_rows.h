#pragma once

// The ops on the rows of a slot's recent tokens (docs/speculation.md section 4), for one seat of the bucket;
// shared by the backends as kernels/rules/decode_rows.h.

#include "kernels/ops/slots.h"

namespace foredraft {

constexpr bool Emitted(const StepOutput& output) { return output.slot >= 0 && output.emitted_count > 0; }

constexpr void LayOutRecentRows(const RecentRowsParams& p, int32_t seat) {
  const int32_t kmax = p.max_draft_len;
  const int32_t first_row = seat * (kmax + 1);
  const StepOutput& output = p.outputs[seat];
  if (!Emitted(output)) {
    for (int32_t row = first_row; row <= first_row + kmax; ++row) {
      p.ids[row] = 0;
      p.positions[row] = 0;
      p.row_slots[row] = p.recent_index[row] = p.target_index[row] = p.save_index[row] = -1;
    }
    return;
  }
  int32_t* const recent = p.recent_ids + static_cast<int64_t>(output.slot) * kmax;
  for (int32_t r = 0; r <= kmax; ++r) {
    const int32_t row = first_row + r;
    const int32_t index = output.emitted_count - 1 + r;  // in the recent ids followed by this step's
    const int32_t position = output.length - kmax + r;
    const bool exists = position >= 1;
    const bool old = index < kmax;
    p.ids[row] = !exists ? 0 : old ? recent[index] : output.token_ids[index - kmax];
    p.positions[row] = position > 0 ? position : 0;
    p.row_slots[row] = exists ? output.slot : -1;
    p.recent_index[row] = exists && old ? output.slot * kmax + index : -1;
    p.target_index[row] = exists && !old ? seat * (p.draft_len + 1) + index - kmax : -1;
    p.save_index[row] = exists && r > 0 ? output.slot * kmax + r - 1 : -1;
  }
  for (int32_t i = 0; i < kmax; ++i) recent[i] = p.ids[first_row + 1 + i];
}

constexpr void LayOutRecentLevelRows(const RecentLevelRowsParams& p, int32_t seat) {
  const int32_t kmax = p.max_draft_len;
  const StepOutput& output = p.outputs[seat];
  const bool drafts = Emitted(output);
  const int32_t made = drafts ? p.slots.drafts[output.slot].draft_count : 0;
  for (int32_t r = 0; r <= kmax; ++r) {
    const int32_t row = seat * (kmax + 1) + r;
    const int32_t ahead = p.level - 1 - kmax + r;  // position - P
    const int32_t position = drafts ? output.length + ahead : 0;
    const bool exists = drafts && position >= p.level && ahead <= made;
    p.row_slots[row] = exists ? output.slot : -1;
    p.positions[row] = position > 0 ? position : 0;
    p.ids[row] = !exists     ? 0
                 : ahead > 0 ? p.slots.drafts[output.slot].tokens[ahead - 1]
                             : p.recent_ids[static_cast<int64_t>(output.slot) * kmax + kmax - 1 + ahead];
  }
}

constexpr void AppendRecentToken(const AppendRecentParams& p, int32_t seat) {
  const StepOutput& output = p.outputs[seat];
  if (!Emitted(output)) return;
  int32_t* const recent = p.recent_ids + static_cast<int64_t>(output.slot) * p.max_draft_len;
  for (int32_t i = 0; i + 1 < p.max_draft_len; ++i) recent[i] = recent[i + 1];
  recent[p.max_draft_len - 1] = output.token_ids[0];
}

}  // namespace foredraft
