#pragma once

// Parameters of the ops that choose tokens from logits. kernels/ops.h has the rules and the letters in
// shapes.

#include <cstdint>

#include "kernels/logit_adjustments.h"
#include "kernels/row_masks.h"
#include "kernels/slot_arrays.h"
#include "kernels/tensor.h"

namespace foredraft {

// out[r] = argmax of row r over the tokens that its mask allows; ties: the lowest id. kNoToken where a logit
// of the row is NaN or +infinity, even outside of the mask, or where the mask allows only -infinity.
struct ArgmaxParams {
  int32_t* out;                // [R]
  Matrix<const float> logits;  // [R, V]
  RowMasks masks = {};
};

// The target's own token of each row: logits outside of the row's mask become -infinity, then the request's
// adjustments (kernels/logit_adjustments.h), then argmax (temperature 0), or temperature, top-k, top-p, min-p
// and argmax(log q + Gumbel(seed, position, v)) (docs/speculation.md section 2). Rows of one slot are
// adjacent. For the penalties, row j of a slot counts ids[1..j] of its slot's rows on top of the slot's
// counts. The noise is keyed by the sampled token's position, which is the row's position + 1. A row gets
// kNoToken as in argmax; its logprobs are then not written. Logprobs are those of the raw logits, so tokens
// outside of the mask may be among the top ones, and so may columns from token_count on, which no row
// chooses. A row past a spent thinking budget gets the forced token (kernels/rules/thinking_budget.h) and
// that token's logprobs.
struct SampleParams {
  int32_t* out;                // [R]
  LogprobOutput* logprobs;     // [R] or null; written where constants.logprob_count >= 0
  Matrix<const float> logits;  // [R, V], raw
  RowIndex index;
  const int32_t* ids;          // [R]: the rows' own ids (t_p, d_1, ...)
  const int32_t* row_in_slot;  // [R]: j, or null = all 0
  int32_t stored_drafts;       // draft rows: the slot's first stored_drafts drafts count as output, too
  SlotArrays slots;
  float* scratch;  // [R, V]
  RowMasks masks = {};
  int32_t token_count = 0;  // so many columns, from the first, may be chosen; 0: all. Masks have as many

  constexpr int32_t choices() const { return token_count > 0 ? token_count : logits.cols; }
  // The drafts before row r.
  constexpr DraftHistory drafts_before(int32_t r) const {
    if (stored_drafts > 0) return {slots.drafts[index.slots[r]].tokens, stored_drafts};
    return EarlierDrafts(ids, row_in_slot, r);
  }
  // The row of the draft that row r verifies: the slot's next row; -1: none.
  constexpr int32_t draft_row(int32_t r) const {
    const int32_t next = r + 1;
    const bool has = row_in_slot != nullptr && next < index.rows && index.slots[next] == index.slots[r] &&
                     row_in_slot[next] == row_in_slot[r] + 1;
    return has ? next : -1;
  }
};

// Relaxed acceptance (docs/speculation.md section 2): relaxed[r] = 1 where the id of the slot's next row is a
// candidate of row r: among the relaxed_topk most probable tokens (softmax of the adjusted logits at
// temperature 1; ties: lower id first), with a probability of at least the largest minus relaxed_delta. 0
// where the rule is strict, or the slot is sampled or strict. Cheap unless the rule is relaxed. verify_drafts
// checks the phase.
struct RelaxDraftsParams {
  int32_t* relaxed;            // [R]
  Matrix<const float> logits;  // [R, V], raw
  RowIndex index;
  const int32_t* ids;          // [R]
  const int32_t* row_in_slot;  // [R]
  SlotArrays slots;
  float* scratch;  // [R, V]
};

}  // namespace foredraft
