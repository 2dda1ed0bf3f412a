#pragma once

// The slot op cut_drafts, shared by the backends: three passes over the seats, each of which needs the
// previous pass's results for all seats.

#include "kernels/exp.h"
#include "kernels/ops/draft_block.h"
#include "kernels/rules/decode_rows.h"

namespace foredraft {

// First pass: the chances of the seat's drafts, 0 where it has no draft.
constexpr void SetChances(const CutDraftsParams& p, int32_t seat) {
  const int32_t slot = p.live_slots[seat];
  const bool runs = Steps(p.slots, slot);
  const int32_t count = runs ? VerifyLen(p.slots, slot, p.draft_len) : 0;
  p.verify_lens[seat] = runs ? count : -1;
  float chance = 1.0f;
  for (int32_t k = 0; k < p.draft_len; ++k) {
    if (k < count) {
      const DraftCalibration& calibration = p.calibration[k];
      chance *= Sigmoid(calibration.slope * p.slots.drafts[slot].confidences[k] + calibration.offset);
    }
    p.chances[seat * p.draft_len + k] = k < count ? chance : 0.0f;
  }
}

// How many rows are left for drafts, after one for each running seat.
constexpr int32_t DraftRows(const CutDraftsParams& p) {
  int32_t rows = p.row_count;
  for (int32_t seat = 0; seat < p.bucket; ++seat) rows -= p.verify_lens[seat] >= 0 ? 1 : 0;
  return rows;
}

// True if fewer than `rows` drafts, of all seats, rank before draft k of the seat.
constexpr bool HasRow(const CutDraftsParams& p, int32_t seat, int32_t k, int32_t rows) {
  const float chance = p.chances[seat * p.draft_len + k];
  for (int32_t other = 0; other < p.bucket; ++other) {
    for (int32_t j = 0; j < p.verify_lens[other]; ++j) {
      const float of_other = p.chances[other * p.draft_len + j];
      const bool first = of_other > chance || (of_other == chance && (j < k || (j == k && other < seat)));
      if (first && --rows <= 0) return false;
    }
  }
  return rows > 0;
}

// Second pass: the seat's draft_count.
constexpr void CutSeat(const CutDraftsParams& p, int32_t seat, int32_t draft_rows) {
  int32_t kept = 0;
  while (kept < p.verify_lens[seat] && HasRow(p, seat, kept, draft_rows)) ++kept;
  if (p.verify_lens[seat] >= 0) p.slots.drafts[p.live_slots[seat]].draft_count = kept;
}

// Third pass: where the seat's rows begin.
constexpr void PlaceSeat(const CutDraftsParams& p, int32_t seat) {
  int32_t row = 0;
  for (int32_t other = 0; other < seat; ++other) {
    const int32_t slot = p.live_slots[other];
    if (p.verify_lens[other] >= 0) row += 1 + VerifyLen(p.slots, slot, p.draft_len);
  }
  p.first_rows[seat] = row;
}

constexpr void MakeIdle(const CutDraftsParams& p, int32_t row) {
  p.ids[row] = 0;
  p.row_slots[row] = -1;
  p.positions[row] = 0;
  p.row_in_slot[row] = 0;
}

}  // namespace foredraft
