#pragma once

// The fields of every part of a plan and of a result: each is listed once, with the range that a rank
// accepts. These lists determine the bytes between a leader and its workers and the checks at both ends
// (ranks/plan_codec.h), IterationPlan::DebugString, and the forged messages of tests. Pure.
//
// A visitor (scheduler/field_visitor.h) is called with the fields in their order. A range may depend on
// fields before it, because a reader has them by then.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "config/slot_limits.h"
#include "scheduler/field_visitor.h"
#include "scheduler/plan.h"

namespace foredraft {

// T: the part, const for a visitor that only reads.
template <class T, class Part>
concept Is = std::same_as<std::remove_const_t<T>, Part>;

template <class Visitor, Is<AcceptanceRule> T>
void VisitFields(Visitor& visit, T& part) {
  visit("relaxed_topk", part.relaxed_topk, Range{0, 64});
  visit("relaxed_delta", part.relaxed_delta, RealRange{0, 1});
  visit("forced_length", part.forced_length, RealRange{0, kMaxDraftLen + 1});
}

template <class Visitor, Is<DraftCalibration> T>
void VisitFields(Visitor& visit, T& part) {
  visit("slope", part.slope, RealRange{0, kLargestConfidence});
  visit("offset", part.offset, RealRange{-kLargestConfidence, kLargestConfidence});
}

template <class Visitor, Is<ThinkingIds> T>
void VisitFields(Visitor& visit, T& part) {
  visit("begin", part.begin, Range{-1, visit.limits.vocab_size - 1});
  visit("end", part.end, Range{-1, visit.limits.vocab_size - 1});
}

template <class Visitor, Is<TokenBias> T>
void VisitFields(Visitor& visit, T& part) {
  visit("token_id", part.token_id, visit.tokens());
  visit("bias", part.bias, RealRange{-100, 100});
}

template <class Visitor, Is<SamplingParams> T>
void VisitFields(Visitor& visit, T& part) {
  visit("temperature", part.temperature, RealRange{0, 100});
  visit("top_p", part.top_p, RealRange{0, 1});
  visit("top_k", part.top_k, Range{0, visit.limits.vocab_size});
  visit("min_p", part.min_p, RealRange{0, 1});
  visit("repetition_penalty", part.repetition_penalty, RealRange{0, 100});
  visit("presence_penalty", part.presence_penalty, RealRange{-2, 2});
  visit("frequency_penalty", part.frequency_penalty, RealRange{-2, 2});
  visit("seed", part.seed);
  visit("min_tokens", part.min_tokens, Range{0, visit.limits.max_seq_len});
  visit("logit_bias", part.logit_bias, Range{0, kMaxLogitBiases});
}

template <class Visitor, Is<SlotGate> T>
void VisitFields(Visitor& visit, T& part) {
  visit("constrained", part.constrained);
  visit("first", part.first, Range{0, 2});
  visit("opens_thought", part.opens_thought);
  visit.Tokens("trigger_ids", part.trigger_ids, Range{0, kMaxTriggerIds});
  visit("barred_stop_count", part.barred_stop_count, Range{0, kMaxStopIds});
}

template <class Visitor, Is<ThinkingBudget> T>
void VisitFields(Visitor& visit, T& part) {
  visit("limit", part.limit, Range{0, visit.limits.max_seq_len});
  visit.Tokens("end_ids", part.end_ids, Range{0, kMaxThoughtEndIds});
}

template <class Visitor, Is<SlotAdmission> T>
void VisitFields(Visitor& visit, T& part) {
  const PlanLimits& limits = visit.limits;
  visit("slot", part.slot, visit.slots());
  visit("sampling", part.sampling);
  visit("logprob_count", part.logprob_count, Range{-1, kMaxLogprobs});
  visit("phase", part.phase, Range{0, 1});
  visit("thinking", part.thinking);
  visit("thinking_budget", part.thinking_budget);
  visit("draft_cap", part.draft_cap, Range{0, limits.max_draft_len});
  visit("strict", part.strict);
  visit("prompt_len", part.prompt_len, Range{1, limits.max_seq_len - 1});
  visit("length_limit", part.length_limit, Range{part.prompt_len, limits.max_seq_len - 1});
  visit.Tokens("stop_ids", part.stop_ids, Range{0, kMaxStopIds});
  visit("reused_len", part.reused_len, Range{0, std::max(0, part.prompt_len - limits.drafter.reuse_reserve)});
  const bool reuses = part.reused_len > 0;
  visit("boundary_block", part.boundary_block,
        reuses ? Range{1, limits.group(kHistoryGroup).block_count - 1} : Range{-1, -1});
  const int32_t counted = part.sampling.counts_tokens() ? part.reused_len : 0;
  visit.Tokens("reused_ids", part.reused_ids, Range{counted, counted});
  visit("gate", part.gate);
}

template <class Visitor, Is<BlockTableDelta> T>
void VisitFields(Visitor& visit, T& part) {
  visit("slot", part.slot, visit.slots());
  visit.BlockRun(part, /*lowest_block=*/kScratchBlock);
}

template <class Visitor, Is<CacheGroupBlocks> T>
void VisitFields(Visitor& visit, T& part) {
  visit.BlockRun(part, /*lowest_block=*/kScratchBlock + 1);
}

template <class Visitor, class T>
requires(Is<T, SwapOut> || Is<T, SwapIn>) void VisitFields(Visitor& visit, T& part) {
  const int64_t groups = static_cast<int64_t>(visit.limits.groups.size());
  visit("image_id", part.image_id);
  visit("slot", part.slot, visit.slots());
  visit("blocks", part.blocks, Range{groups, groups});
}

template <class Visitor, Is<PrefillChunk> T>
void VisitFields(Visitor& visit, T& part) {
  const PlanLimits& limits = visit.limits;
  visit("slot", part.slot, visit.slots());
  visit("first_position", part.first_position, Range{0, limits.max_seq_len - 1});
  visit.Tokens("token_ids", part.token_ids,
               Range{1, std::min(limits.max_num_tokens, limits.max_seq_len - part.first_position)});
  visit("last", part.last);
}

template <class Visitor, Is<GivenTokens> T>
void VisitFields(Visitor& visit, T& part) {
  visit("slot", part.slot, visit.slots());
  visit.Tokens("token_ids", part.token_ids,
               Range{1, std::min(visit.plan.draft_len + 1, visit.limits.drafter.given_limit)});
}

template <class Visitor, Is<TokenMask> T>
void VisitFields(Visitor& visit, T& part) {
  visit("vocab_size", part.vocab_size, Range{1, visit.limits.vocab_size});
  visit("count", part.count, Range{0, part.vocab_size});
  visit("ids", part.ids, Range{0, part.vocab_size}, Range{0, part.vocab_size - 1});
  const int64_t words = part.ids.empty() ? (int64_t{part.vocab_size} + 31) / 32 : 0;
  visit("words", part.words, Range{0, words}, Range{0, std::numeric_limits<uint32_t>::max()});
}

template <class Visitor, Is<SlotMasks> T>
void VisitFields(Visitor& visit, T& part) {
  visit("slot", part.slot, visit.slots());
  visit("mask_indices", part.mask_indices, Range{0, visit.plan.draft_len + 1}, visit.masks());
  const int64_t drafts = static_cast<int64_t>(part.mask_indices.size()) - 1;
  visit.Tokens("forced_drafts", part.forced_drafts,
               Range{0, std::clamp<int64_t>(drafts, 0, visit.limits.drafter.forced_limit())});
}

template <class Visitor, Is<FirstMask> T>
void VisitFields(Visitor& visit, T& part) {
  visit("slot", part.slot, visit.slots());
  visit("mask_index", part.mask_index, visit.masks());
}

template <class Visitor, Is<RankPlan> T>
void VisitFields(Visitor& visit, T& part) {
  const PlanLimits& limits = visit.limits;
  const Range slots{0, limits.slot_count};
  visit("releases", part.releases, slots, visit.slots());
  visit("dropped_images", part.dropped_images, kAnyCount);
  visit("swaps_out", part.swaps_out, slots);
  visit("swaps_in", part.swaps_in, slots);
  visit("admissions", part.admissions, slots);
  visit("block_table_deltas", part.block_table_deltas, kAnyCount);
  visit("prefill_chunks", part.prefill_chunks, slots);
  visit("live_slots", part.live_slots, Range{0, visit.plan.decode_bucket}, visit.slots());
  const Range live{0, static_cast<int64_t>(part.live_slots.size())};
  visit("given_tokens", part.given_tokens, live);
  visit("masks", part.masks, Range{0, int64_t{limits.largest_bucket} * (limits.max_draft_len + 2)});
  visit.plan.mask_count = static_cast<int64_t>(part.masks.size());
  visit("slot_masks", part.slot_masks, live);
  visit("first_masks", part.first_masks, Range{0, static_cast<int64_t>(part.prefill_chunks.size())});
}

// The fields that all ranks share.
template <class Visitor, Is<IterationPlan> T>
void VisitFields(Visitor& visit, T& part) {
  const PlanLimits& limits = visit.limits;
  visit("number", part.number);
  visit("draft_len", part.draft_len, Range{0, limits.max_draft_len});
  visit("acceptance", part.acceptance);
  visit("decode_bucket", part.decode_bucket, Range{0, limits.largest_bucket});
  visit.plan = {.draft_len = part.draft_len, .decode_bucket = part.decode_bucket};
  visit("verify_rows", part.verify_rows,
        Range{0, limits.cuts_drafts ? int64_t{part.decode_bucket} * part.draft_len : 0});
  visit("calibration", part.calibration, Range{0, limits.max_draft_len});
  visit("argmax", part.argmax);
  visit("prefill_rows", part.prefill_rows, visit.ranks(), Range{0, limits.max_num_tokens});
  visit("ended_prompts", part.ended_prompts, visit.ranks(), Range{0, limits.slot_count});
}

template <class Visitor, Is<TopLogprob> T>
void VisitFields(Visitor& visit, T& part) {
  visit("token_id", part.token_id, visit.tokens());
  visit("logprob", part.logprob, kFinite);
}

template <class Visitor, Is<TokenLogprob> T>
void VisitFields(Visitor& visit, T& part) {
  visit("token_id", part.token_id, visit.tokens());
  visit("logprob", part.logprob, kFinite);
  visit("top", part.top, Range{0, kMaxLogprobs});
}

template <class Visitor, Is<SlotResult> T>
void VisitFields(Visitor& visit, T& part) {
  const PlanLimits& limits = visit.limits;
  const int32_t draft_len = visit.plan.draft_len;
  visit("slot", part.slot, visit.slots());
  visit.Tokens("token_ids", part.token_ids, Range{0, draft_len + 2});
  const int64_t tokens = static_cast<int64_t>(part.token_ids.size());
  visit("first_token", part.first_token);
  visit("length", part.length, Range{0, limits.max_seq_len - 1});
  visit("drafts_verified", part.drafts_verified, Range{0, draft_len});
  visit("relaxed_count", part.relaxed_count, Range{0, part.drafts_verified});
  visit("ends_in_draft", part.ends_in_draft);
  visit("finished", part.finished);
  visit("logprobs", part.logprobs, Range{0, tokens});
  visit("confidences", part.confidences, Range{0, draft_len},
        RealRange{-kLargestConfidence, kLargestConfidence});
  // -1: the drafter's logits had no usable token.
  visit("drafts", part.drafts, Range{0, limits.max_draft_len}, Range{-1, limits.vocab_size - 1});
  visit("nonfinite_logits", part.nonfinite_logits);
}

template <class Visitor, Is<RankResult> T>
void VisitFields(Visitor& visit, T& part) {
  visit("number", part.number);
  visit("slots", part.slots, Range{0, visit.limits.slot_count});
  visit("prefill_seconds", part.prefill_seconds, kSeconds);
  visit("decode_seconds", part.decode_seconds, kSeconds);
  visit("replayed", part.replayed);
}

}  // namespace foredraft
