#pragma once

// verify_drafts and accept_first_token (docs/speculation.md sections 1 and 2) for one seat of the bucket:
// which drafts a step accepts, and the state of the slot after it. The backends share this as they do
// kernels/rules/decode_rows.h.

#include "kernels/ops/slots.h"
#include "kernels/philox.h"
#include "kernels/rules/decode_rows.h"
#include "kernels/rules/thinking_budget.h"

namespace foredraft {

constexpr bool IsStop(const SlotConstants& constants, int32_t token) {
  for (int32_t i = 0; i < constants.stop_id_count; ++i) {
    if (constants.stop_ids[i] == token) return true;
  }
  return false;
}

// The gate of a constrained slot after `token`; `is_first`: the prompt's first token.
constexpr Gate GateAfter(const SlotConstants& constants, Gate gate, int32_t token, bool is_first) {
  return GateAfter(GateTokens{.thinking = constants.thinking,
                              .opens_thought = constants.opens_thought != 0,
                              .trigger_ids = constants.trigger_ids,
                              .trigger_count = constants.trigger_count},
                   gate, token, is_first);
}

// How many tokens a forced step emits: the integer part of forced_length, plus one with a probability of its
// fractional part. The noise depends on the position only.
constexpr int32_t ForcedCount(const AcceptanceRule& rule, int32_t position) {
  constexpr uint64_t kStream = 0x666f72636564;  // "forced"
  const int32_t whole = static_cast<int32_t>(rule.forced_length);
  const float fraction = rule.forced_length - static_cast<float>(whole);
  return whole + (UnitInterval(NoiseBlock(kStream, position, 0)[0]) < fraction ? 1 : 0);
}

// ---- verify_drafts ----

struct Accepted {
  int32_t count = 0;         // tokens in out.token_ids
  uint32_t relaxed_set = 0;  // bit j: token j is a draft that the strict rule rejects
};

// Fills out.token_ids with the accepted drafts and the target's token after them, before the clamp to
// length_limit and stop ids. Without a usable target after them, out.nonfinite is set.
constexpr Accepted AcceptDrafts(const VerifyDraftsParams& p, int32_t seat, int32_t slot, int32_t verify_len,
                                StepOutput& out) {
  const AcceptanceRule& rule = *p.slots.rule;
  const int64_t first_row = FirstRow(p, seat);
  const int32_t* drafts = p.slots.drafts[slot].tokens;
  if (const int32_t given = GivenCount(p.slots, slot, p.draft_len); given > 0) {
    for (int32_t j = 0; j < given; ++j) out.token_ids[j] = drafts[j];
    return {.count = given};
  }
  // A draft that only relaxed or forced acceptance accepts may be outside of the grammar.
  const bool strict = MaskCount(p.slots, slot) > 0;
  const bool forces = rule.forced_length > 0.0f && !strict;
  const int32_t forced = forces ? ForcedCount(rule, p.slots.progress[slot].length) : 0;
  const SlotConstants& constants = p.slots.constants[slot];
  ThoughtState thought = p.slots.progress[slot].thought;
  Accepted accepted;
  for (int32_t j = 0;; ++j) {
    int32_t target = p.target_ids[first_row + j];
    if (target == kNoToken) {
      out.nonfinite = 1;
      accepted.count = j;
      return accepted;
    }
    accepted.count = j + 1;
    const int32_t end_of_thought = strict ? kNoToken : ForcedToken(constants, thought);
    if (end_of_thought != kNoToken) target = end_of_thought;
    out.token_ids[j] = target;
    if (j == verify_len) return accepted;
    const int32_t draft = drafts[j];
    const bool legal = draft >= 0 && draft < p.slots.vocab_size;
    if (forced > 0) {
      if (j + 1 >= forced || !legal) return accepted;
      out.token_ids[j] = draft;
    } else if (draft != target) {
      const bool relaxes = !strict && thought.phase == Phase::kThinking && end_of_thought == kNoToken;
      if (!relaxes || p.relaxed[first_row + j] == 0) return accepted;
      out.token_ids[j] = draft;
      accepted.relaxed_set |= 1u << j;
    }
    thought = thought.After(constants.thinking, out.token_ids[j]);
  }
}

// Ends a constrained slot's step after the token that takes it behind its gate: the rows after it had no
// masks. Returns how many of the `emitted` tokens are left.
constexpr int32_t CutAtGate(const SlotArrays& slots, int32_t slot, int32_t emitted, StepOutput& out) {
  const SlotConstants& constants = slots.constants[slot];
  Gate gate = slots.progress[slot].gate;
  if (constants.constrained == 0 || gate == Gate::kBehind) return emitted;
  for (int32_t i = 0; i < emitted; ++i) {
    gate = GateAfter(constants, gate, out.token_ids[i], /*is_first=*/false);
    if (gate != Gate::kBehind) continue;
    out.nonfinite = 0;  // the next step computes the row after it again
    return i + 1;
  }
  return emitted;
}

// Commits emitted tokens: updates counts, length, thought, gate and `finished`. `is_first`: the token is the
// prompt's first.
constexpr void AdvanceSlot(const SlotArrays& slots, int32_t slot, const int32_t* tokens, int32_t count,
                           int32_t length, bool is_first) {
  const SlotConstants& constants = slots.constants[slot];
  SlotProgress& progress = slots.progress[slot];
  int32_t* counts = slots.output_counts + static_cast<int64_t>(slot) * slots.vocab_size;
  for (int32_t i = 0; i < count; ++i) {
    ++counts[tokens[i]];
    progress.thought = progress.thought.After(constants.thinking, tokens[i]);
    if (constants.constrained != 0) {
      progress.gate = GateAfter(constants, progress.gate, tokens[i], is_first);
    }
  }
  progress.length = length;
  if (count > 0) progress.last_token = tokens[count - 1];
  const bool stopped = count > 0 && IsStop(constants, tokens[count - 1]);
  progress.finished = length >= constants.length_limit || stopped ? 1 : 0;
}

// verify_drafts for one seat. Returns false, and changes nothing, if a running slot has already reached its
// length limit: a broken invariant.
constexpr bool VerifySeat(const VerifyDraftsParams& p, int32_t seat) {
  const SlotArrays& slots = p.slots;
  const int32_t slot = p.live_slots[seat];
  StepOutput out = {};
  out.slot = slot;
  out.first_row = FirstRow(p, seat);
  if (slot >= 0) {
    out.length = slots.progress[slot].length;
    out.finished = slots.progress[slot].finished;
  }
  if (!Runs(slots, slot) || IsHeld(slots, slot)) {
    p.outputs[seat] = out;
    return true;
  }
  const SlotConstants& constants = slots.constants[slot];
  const int32_t verify_len = VerifyLen(slots, slot, p.draft_len);
  const int32_t room = constants.length_limit - out.length;
  if (room < 1) return false;
  const Accepted accepted = AcceptDrafts(p, seat, slot, verify_len, out);
  const int32_t drafted = accepted.count - (out.nonfinite != 0 ? 0 : 1);  // the other token is the target's
  const bool given = slots.drafts[slot].given_count > 0;
  int32_t emitted = accepted.count < room ? accepted.count : room;
  if (!given) emitted = CutAtGate(slots, slot, emitted, out);
  for (int32_t i = 0; i < emitted; ++i) {
    if (IsStop(constants, out.token_ids[i])) {
      emitted = i + 1;
      out.nonfinite = 0;  // without drafts, the row after it would not have been computed
    }
  }
  if (emitted == room) out.nonfinite = 0;
  out.ends_in_draft = !given && emitted > 0 && emitted <= drafted ? 1 : 0;
  for (int32_t i = 0; i < emitted; ++i) out.relaxed_count += accepted.relaxed_set >> i & 1;
  AdvanceSlot(slots, slot, out.token_ids, emitted, out.length + emitted,
              /*is_first=*/false);
  if (out.nonfinite != 0) slots.progress[slot].finished = 1;
  slots.drafts[slot].draft_count = 0;
  slots.drafts[slot].given_count = 0;
  out.emitted_count = emitted;
  out.length += emitted;
  out.drafts_verified = given ? 0 : verify_len;
  out.finished = slots.progress[slot].finished;
  p.outputs[seat] = out;
  return true;
}

// ---- accept_first_token ----

constexpr void AcceptFirstTokenOf(const AcceptFirstTokenParams& p, int32_t seat) {
  const int32_t slot = p.slot_ids[seat];
  StepOutput out = {};
  out.slot = slot;
  if (slot >= 0) {
    SlotProgress& progress = p.slots.progress[slot];
    progress.active = 1;
    int32_t token = p.tokens[seat];
    out.nonfinite = token == kNoToken ? 1 : 0;
    out.emitted_count = 1 - out.nonfinite;
    if (const int32_t end_of_thought = ForcedBehind(p.slots, slot, {}); end_of_thought != kNoToken) {
      token = end_of_thought;
    }
    AdvanceSlot(p.slots, slot, &token, out.emitted_count, p.slots.constants[slot].prompt_len,
                /*is_first=*/true);
    if (out.nonfinite != 0) progress.finished = 1;
    p.slots.drafts[slot].draft_count = 0;
    out.token_ids[0] = out.nonfinite != 0 ? 0 : token;
    out.length = progress.length;
    out.finished = progress.finished;
  }
  p.outputs[seat] = out;
}

}  // namespace foredraft
