#pragma once

// The state of the running sequences in device memory: plain structs in arrays indexed by slot.
// engine/cache/slot_state.h owns the memory. Split by writer: admission constants (written once per
// admission), progress (written by accept_first_token and verify_drafts), drafts (written by store_drafts and
// verify_drafts).

#include <cstdint>

#include "config/acceptance_rule.h"
#include "config/gate_rule.h"
#include "config/slot_limits.h"
#include "config/token_bias.h"

namespace foredraft {

// What argmax and sample return for a row from which no token can be chosen: it has a logit that is NaN or
// +infinity, or all logits that its mask allows are -infinity.
inline constexpr int32_t kNoToken = -1;

// Fixed at admission.
struct SlotConstants {
  uint64_t seed;
  float temperature;         // 0 = greedy
  float top_p;               // 1 = off
  float min_p;               // 0 = off
  float repetition_penalty;  // 1 = off; counts prompt and output
  float presence_penalty;    // 0 = off; counts the output
  float frequency_penalty;   // 0 = off; counts the output
  int32_t top_k;             // 0 = off
  int32_t logprob_count;     // -1 = no logprobs; 0..20 = the chosen token's, and this many top ones
  int32_t draft_cap;         // most drafts verified per step
  int32_t strict;            // 1: never relaxed, whatever the rule says
  ThinkingIds thinking;
  int32_t prompt_len;           // m
  int32_t length_limit;         // largest length: min(max_seq_len, prompt_len + max_tokens) - 1
  int32_t first_stop_position;  // no token for an earlier position is one of stop_ids; 0 = off
  int32_t stop_id_count;
  int32_t stop_ids[kMaxStopIds];
  int32_t barred_stop_count;  // so many of stop_ids, counted from the first, are barred in a thought before a
                              // grammar
  int32_t bias_count;
  TokenBias biases[kMaxLogitBiases];  // ascending by token id
  int32_t constrained;                // 1: the output has a grammar, which holds behind the gate
  int32_t opens_thought;              // 1: thinking.begin raises the gate (GateAfter)
  int32_t trigger_count;
  int32_t trigger_ids[kMaxTriggerIds];
  int32_t thought_limit;      // thinking tokens that the model may choose; then its thought is ended
  int32_t thought_end_count;  // 0: there is no limit
  int32_t thought_end_ids[kMaxThoughtEndIds];  // the tokens forced after these; the last one ends the thought
};

// t_0..t_length are committed; t_length = last_token is not in the target's cache.
struct SlotProgress {
  int32_t length;
  int32_t last_token;
  int32_t finished;      // 1: its state no longer changes, its rows are idle
  int32_t active;        // 1 from accept_first_token (or swap-in) to release
  ThoughtState thought;  // last_token included
  Gate gate;             // after last_token; meaningless unless the sequence is constrained
};

// The masks of a slot's rows in one step, written before it.
struct SlotStepMasks {
  int32_t count;                           // of rows with a mask; 0: none; -1: the slot is held
  int32_t mask_indices[kMaxDraftLen + 1];  // of row j, in RowMasks::words
};

// The drafts for positions length + 1 .. length + draft_count. Or, where given_count is not 0, the tokens
// that the next step emits whatever the target says. All of these tokens except the last have rows in the
// step, as drafts do.
struct SlotDrafts {
  int32_t draft_count;
  int32_t given_count;  // 0..K+1
  int32_t tokens[kMaxDraftLen + 1];
  // Where the drafter has confidences: the logit of the chance that draft i + 1 is accepted if the drafts
  // before it are.
  float confidences[kMaxDraftLen];
};

// Logprobs of one row's token, from the raw target logits.
struct LogprobOutput {
  int32_t token_id;
  float logprob;
  float draft_logprob;  // of the draft that the row verifies, which may be emitted in the token's place
  int32_t top_count;
  int32_t top_ids[kMaxLogprobs];
  float top_logprobs[kMaxLogprobs];  // descending; ties: lower id first
};

struct SlotArrays {
  const AcceptanceRule* rule = nullptr;  // one for all slots
  SlotConstants* constants = nullptr;    // [slots]
  SlotProgress* progress = nullptr;      // [slots]
  SlotDrafts* drafts = nullptr;          // [slots]
  int32_t* output_counts = nullptr;      // [slots, vocab_size]: tokens emitted so far, t_prompt_len..t_length
  uint8_t* prompt_seen = nullptr;        // [slots, vocab_size]: 1 where the prompt has the token
  const SlotStepMasks* step_masks = nullptr;  // [slots]; read where a sequence is constrained
  int32_t vocab_size = 0;
};

// The result of a step for one seat of the bucket.
struct StepOutput {
  int32_t slot;           // -1: padding
  int32_t emitted_count;  // n, 0..K+1; 0 for a held slot, whose state stays as it is
  int32_t token_ids[kMaxDraftLen + 1];
  int32_t length;           // after the step
  int32_t drafts_verified;  // v
  int32_t relaxed_count;    // emitted drafts that the strict rule would have rejected
  // 1: the last token is an accepted draft, because length_limit, a stop id or the gate ended the step there.
  int32_t ends_in_draft;
  int32_t finished;
  int32_t first_row;  // the step's row of the seat's last committed token
  int32_t nonfinite;  // 1: the step, and with it the sequence, ended before a row of kNoToken
  // The confidences of the drafts that the step made for the next one, as in SlotDrafts.
  float confidences[kMaxDraftLen];
};

}  // namespace foredraft
