#pragma once

// Slot ops for one seat of the bucket, or for one row: those that lay out rows (decode_rows, emitted_rows,
// next_draft_rows), border_blocks and store_drafts (docs/speculation.md sections 1, 3 and 5). The backends
// share these functions and call them for every seat: a CPU in a loop, a GPU in a thread per seat. Integers
// only, and constexpr, so that device code may call them.

#include "kernels/ops/slots.h"

namespace foredraft {

// True for a slot whose rows are computed and whose state may change.
constexpr bool Runs(const SlotArrays& slots, int32_t slot) {
  return slot >= 0 && slots.progress[slot].active != 0 && slots.progress[slot].finished == 0;
}

// How many given tokens a step with draft_len K emits; 0: the slot has none.
constexpr int32_t GivenCount(const SlotArrays& slots, int32_t slot, int32_t draft_len) {
  const int32_t count = slots.drafts[slot].given_count;
  return count < draft_len + 1 ? count : draft_len + 1;
}

// How many rows have masks in this step, for a constrained slot behind its gate; 0 for other slots.
constexpr int32_t MaskCount(const SlotArrays& slots, int32_t slot) {
  if (slots.constants[slot].constrained == 0 || slots.progress[slot].gate != Gate::kBehind) return 0;
  return slots.step_masks[slot].count;
}

// True for a constrained slot that the step leaves as it is: the plan says so, or its rows lack masks
// (no-mask-no-token). Given tokens need none.
constexpr bool IsHeld(const SlotArrays& slots, int32_t slot) {
  if (slots.constants[slot].constrained == 0 || slots.drafts[slot].given_count > 0) return false;
  return slots.step_masks[slot].count < 0 ||
         (slots.progress[slot].gate == Gate::kBehind && slots.step_masks[slot].count == 0);
}

// True for a slot that the decode step advances.
constexpr bool Steps(const SlotArrays& slots, int32_t slot) {
  return Runs(slots, slot) && !IsHeld(slots, slot);
}

// v: how many rows a step with draft_len K has for a slot after its first row. They hold drafts to verify, or
// given tokens.
constexpr int32_t VerifyLen(const SlotArrays& slots, int32_t slot, int32_t draft_len) {
  if (const int32_t given = GivenCount(slots, slot, draft_len); given > 0) return given - 1;
  int32_t len = slots.drafts[slot].draft_count;
  if (slots.constants[slot].draft_cap < len) len = slots.constants[slot].draft_cap;
  if (draft_len < len) len = draft_len;
  if (const int32_t masks = MaskCount(slots, slot); masks > 0 && masks - 1 < len) len = masks - 1;
  return len > 0 ? len : 0;
}

// The mask of the slot's row j; -1: it has none.
constexpr int32_t MaskOfRow(const SlotArrays& slots, int32_t slot, int32_t j) {
  if (slots.drafts[slot].given_count > 0 || j >= MaskCount(slots, slot)) return -1;
  return slots.step_masks[slot].mask_indices[j];
}

// The first row of a seat in decode_rows and verify_drafts.
template <class Params>
constexpr int32_t FirstRow(const Params& p, int32_t seat) {
  return p.first_rows != nullptr ? p.first_rows[seat] : seat * (p.draft_len + 1);
}

constexpr void LayOutDecodeRows(const DecodeRowsParams& p, int32_t seat) {
  const int32_t slot = p.live_slots[seat];
  const bool runs = Steps(p.slots, slot);
  const int32_t first_position = runs ? p.slots.progress[slot].length : 0;
  const int32_t verify_len = runs ? VerifyLen(p.slots, slot, p.draft_len) : -1;
  const int32_t last = p.first_rows != nullptr ? verify_len : p.draft_len;
  for (int32_t j = 0; j <= last; ++j) {
    const int32_t row = FirstRow(p, seat) + j;
    int32_t id = 0;
    if (j <= verify_len) {
      id = j == 0 ? p.slots.progress[slot].last_token : p.slots.drafts[slot].tokens[j - 1];
    }
    p.ids[row] = id >= 0 && id < p.slots.vocab_size ? id : 0;
    p.row_slots[row] = j <= verify_len ? slot : -1;
    p.positions[row] = first_position + j;
    p.row_in_slot[row] = j;
    if (p.row_masks != nullptr) p.row_masks[row] = j <= verify_len ? MaskOfRow(p.slots, slot, j) : -1;
  }
}

constexpr void LayOutEmittedRows(const EmittedRowsParams& p, int32_t seat) {
  const StepOutput& output = p.outputs[seat];
  const int32_t first_row = seat * (p.draft_len + 1);
  const int32_t emitted = output.slot >= 0 ? output.emitted_count : 0;
  const int32_t first_position = emitted > 0 ? output.length - emitted + 1 : 1;
  for (int32_t j = 0; j <= p.draft_len; ++j) {
    p.ids[first_row + j] = j < emitted ? output.token_ids[j] : 0;
    p.row_slots[first_row + j] = j < emitted && first_position + j >= p.level ? output.slot : -1;
    p.positions[first_row + j] = first_position + j;
  }
  p.last_row[seat] = first_row + (emitted > 0 ? emitted - 1 : 0);
}

constexpr void LayOutNextDraftRows(const NextDraftRowsParams& p, int32_t seat) {
  const StepOutput& output = p.outputs[seat];
  const bool drafts = output.slot >= 0 && output.emitted_count > 0 && output.finished == 0;
  p.ids[seat] = drafts ? p.draft_ids[seat] : 0;
  p.row_slots[seat] = drafts ? output.slot : -1;
  p.positions[seat] = (drafts ? output.length : 0) + p.draft_index;
}

constexpr void FindBorderBlock(const BorderBlocksParams& p, int32_t row) {
  const int32_t slot = p.row_slots[row];
  const int32_t position = p.positions[row];
  p.blocks[row] = -1;
  if (slot < 0 || (position + 1) % p.tokens_per_block != 0) return;
  const int32_t block = p.block_tables[int64_t{slot} * p.table_stride + position / p.tokens_per_block];
  if (block > 0) p.blocks[row] = block;
}

constexpr void StoreDraft(const StoreDraftsParams& p, int32_t seat) {
  const StepOutput& output = p.outputs[seat];
  if (output.emitted_count == 0 || !Runs(p.slots, output.slot)) return;
  SlotDrafts& drafts = p.slots.drafts[output.slot];
  drafts.tokens[p.draft_index - 1] = p.draft_ids[seat];
  drafts.draft_count = p.draft_index;
}

}  // namespace foredraft
