// Commit: applies an iteration's results to its sequences.

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "scheduler/scheduler.h"

namespace foredraft {

void Scheduler::Commit(std::vector<RankResult> results, double step_seconds) {
  CHECK(!in_flight_.empty());
  LaunchedPlan launched = std::move(in_flight_.front());
  in_flight_.pop_front();
  CHECK_EQ(results.size(), ranks_.size());
  if (launched.decode_bucket > 0) ObserveStep(launched, results, step_seconds);
  mask_budget_.Observe(launched.decode_bucket > 0 ? step_seconds : 0);
  ObservePrefill(launched, results);
  size_t live_count = 0;
  for (const LaunchedRank& rank : launched.ranks) live_count += rank.live.size();
  updates_.reserve(updates_.size() + live_count);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    CommitRank(launched, static_cast<int>(rank), &results[rank]);
  }
}

void Scheduler::CommitAnswered(std::vector<std::optional<RankResult>> results) {
  CHECK(!in_flight_.empty());
  CHECK_EQ(results.size(), ranks_.size());
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (results[rank]) CommitRank(in_flight_.front(), static_cast<int>(rank), &*results[rank]);
  }
}

// Passes the step to the draft policy. The draft after the last accepted one counts as rejected, unless a
// stop, the limit or the gate cut the step there.
void Scheduler::ObserveStep(const LaunchedPlan& launched, const std::vector<RankResult>& results,
                            double step_seconds) {
  StepObservation step{.bucket = launched.decode_bucket,
                       .draft_len = launched.draft_len,
                       .cut_len = launched.cut_len,
                       .seconds = step_seconds,
                       .tried = std::vector<int>(options_.max_draft_len),
                       .accepted = std::vector<int>(options_.max_draft_len)};
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const RankResult& result = results[rank];
    if (step_seconds == 0) step.seconds = std::max(step.seconds, result.decode_seconds);
    for (size_t i = 0; i < result.slots.size(); ++i) {
      const SlotResult& slot = result.slots[i];
      const int accepted = slot.step_token_count() - 1;
      if (accepted < 0 || launched.ranks[rank].live[i].given) continue;  // below 0: it had finished before
      for (int i = 0; i < accepted; ++i) {
        ++step.tried[i];
        ++step.accepted[i];
      }
      const LaunchedSlot& live = launched.ranks[rank].live[i];
      const auto& constraint = live.sequence->constraint;
      const bool cut = slot.finished || (constraint != nullptr && constraint->PassesGate(slot.token_ids));
      const bool refused = live.leaves_grammar && live.forced_drafts == 0;
      const bool rejected = accepted < slot.drafts_verified || refused;
      if (rejected && !cut) ++step.tried[accepted];
      ObserveConfidences(launched, live, slot, cut, step);
    }
  }
  draft_policy_.Observe(step);
}

// Ranks wait for each other, so the slowest rank's time counts for the rank with the most tokens. A prefill
// whose requests have all ended may have been abandoned early: its time says nothing.
void Scheduler::ObservePrefill(const LaunchedPlan& launched, const std::vector<RankResult>& results) {
  if (launched.prefill.tokens == 0) return;
  const bool wanted = std::any_of(launched.ranks.begin(), launched.ranks.end(), [](const LaunchedRank& rank) {
    return std::any_of(rank.chunks.begin(), rank.chunks.end(),
                       [](const auto& chunk) { return chunk.first->state != SequenceState::kEnded; });
  });
  if (!wanted) return;
  double seconds = 0;
  for (const RankResult& result : results) seconds = std::max(seconds, result.prefill_seconds);
  prefill_pace_.Observe(launched.prefill, seconds);
}

// Tells the draft policy what became of the drafts whose confidences came with the sequence's last result.
// `cut`: as in ObserveStep.
void Scheduler::ObserveConfidences(const LaunchedPlan& launched, const LaunchedSlot& live,
                                   const SlotResult& slot, bool cut, StepObservation& step) {
  const Sequence& sequence = *live.sequence;
  // Drafts made at a prompt's end are verified in the same iteration: only their number is known.
  const int made = slot.first_token ? launched.draft_len : static_cast<int>(sequence.confidences.size());
  const int most = live.masking == Masking::kMasked ? live.mask_count - 1 : launched.draft_len;
  const int wanted = std::min({made, most, DraftCap(sequence)});
  if (launched.cut_len > 0) counters_.cut_drafts += std::max(0, wanted - slot.drafts_verified);
  if (launched.forced || slot.first_token) return;
  const int accepted = slot.step_token_count() - 1;
  const int known =
      std::min({static_cast<int>(sequence.confidences.size()), slot.drafts_verified, live.own_drafts});
  for (int k = 1; k <= std::min(accepted + 1, known); ++k) {
    if (k > accepted && cut) break;
    step.events.push_back({.k = k, .confidence = sequence.confidences[k - 1], .accepted = k <= accepted});
  }
}

absl::Status Scheduler::CheckResult(int rank, const RankResult& result) const {
  CHECK(!in_flight_.empty());
  return CheckResult(in_flight_.front(), rank, result);
}

absl::Status Scheduler::CheckResult(const LaunchedPlan& launched, int rank, const RankResult& result) const {
  const LaunchedRank& expected = launched.ranks[rank];
  if (result.number != launched.number || result.slots.size() != expected.live.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("result %d of %d slots, allowed %d of %d",
                                                      result.number, result.slots.size(), launched.number,
                                                      expected.live.size()));
  }
  for (size_t i = 0; i < expected.live.size(); ++i) {
    const Sequence& sequence = *expected.live[i].sequence;
    if (sequence.state == SequenceState::kEnded) continue;
    const bool prompt_ends = std::any_of(
        expected.chunks.begin(), expected.chunks.end(),
        [&](const auto& chunk) { return chunk.first == &sequence && chunk.second == sequence.prompt_len; });
    RETURN_IF_ERROR(CheckSlotResult(launched, expected.live[i], prompt_ends, result.slots[i]));
  }
  return absl::OkStatus();
}

// Checks that the result is one that the sequence can have after all its earlier results.
absl::Status Scheduler::CheckSlotResult(const LaunchedPlan& launched, const LaunchedSlot& live,
                                        bool prompt_ends, const SlotResult& result) const {
  const Sequence& sequence = *live.sequence;
  const auto check = [&result](const char* field, int64_t value, int64_t lowest, int64_t highest) {
    if (value >= lowest && value <= highest) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("slot %d: %s: %d, allowed %d..%d", result.slot, field, value, lowest, highest));
  };
  if (sequence.slot >= 0) RETURN_IF_ERROR(check("slot", result.slot, sequence.slot, sequence.slot));
  RETURN_IF_ERROR(check("first_token", result.first_token, 0, prompt_ends));
  const int step_tokens = result.step_token_count();
  const bool held = live.masking == Masking::kHeld;
  RETURN_IF_ERROR(check("tokens of the step", step_tokens, held || result.finished ? 0 : 1,
                        held ? 0 : launched.draft_len + 1));
  const int length = (prompt_ends ? sequence.prompt_len : sequence.length) + step_tokens;
  RETURN_IF_ERROR(check("length", result.length, length, std::min(length, sequence.length_limit)));
  RETURN_IF_ERROR(check("ends_in_draft", result.ends_in_draft, 0, step_tokens > 0 && !live.given));
  const int accepted = std::max(0, step_tokens - 1);
  if (!live.given)
    RETURN_IF_ERROR(check("drafts_verified", result.drafts_verified, accepted, launched.draft_len));
  RETURN_IF_ERROR(
      check("relaxed_count", result.relaxed_count, 0, result.ends_in_draft ? step_tokens : accepted));
  const int64_t logprobs =
      sequence.request.logprob_count < 0 ? 0 : static_cast<int64_t>(result.token_ids.size());
  RETURN_IF_ERROR(check("logprobs size", result.logprobs.size(), logprobs, logprobs));
  const std::vector<int32_t>& stop_ids = sequence.request.stop_ids;
  const bool stops = !result.token_ids.empty() &&
                     std::find(stop_ids.begin(), stop_ids.end(), result.token_ids.back()) != stop_ids.end();
  const bool may_finish = stops || result.nonfinite_logits || result.length == sequence.length_limit;
  return check("finished", result.finished, 0, may_finish);
}

void Scheduler::CommitRank(const LaunchedPlan& launched, int rank, RankResult* result) {
  const LaunchedRank& expected = launched.ranks[rank];
  const absl::Status fits = CheckResult(launched, rank, *result);
  CHECK(fits.ok()) << "rank " << rank << ", iteration " << launched.number << ": " << fits;
  RankState& state = ranks_[rank];
  const bool has_windows = state.group_count() > 1;
  for (const auto& [sequence, end] : expected.chunks) {
    if (sequence->state == SequenceState::kEnded) continue;
    if (options_.enable_block_reuse && sequence->may_offer) {
      state.Offer(sequence, std::min(end, sequence->prompt_len - options_.drafter.offer_margin));
    }
    if (end == sequence->prompt_len) state.EndPrompt(sequence);
  }
  for (size_t i = 0; i < expected.live.size(); ++i) {
    Sequence* const sequence = expected.live[i].sequence;
    const bool held = expected.live[i].masking == Masking::kHeld;
    counters_.held_slots += held ? 1 : 0;
    --sequence->live_plans;
    sequence->unresolved_rows -= held ? 0 : launched.draft_len + 1;
    sequence->unresolved_steps -= held ? 0 : 1;
    if (sequence->state == SequenceState::kEnded) {
      ++counters_.wasted_steps;
      continue;
    }
    if (!held) {  // a held slot keeps its drafts
      sequence->confidences = std::move(result->slots[i].confidences);
      draft_policy_.Expect(sequence->confidences);
    }
    CommitResult(launched, expected.live[i], &result->slots[i]);
    if (sequence->state == SequenceState::kDecoding) {  // rewind, pass
      counters_.rewound_blocks +=
          state.Shrink(sequence, sequence->length + sequence->unresolved_rows + options_.drafter.rows_ahead);
      if (has_windows) state.Pass(sequence, sequence->length_lower());
    }
  }
  for (Sequence* sequence : expected.named) {
    --sequence->plans_in_flight;
    ForgetIfUnnamed(sequence);
  }
}

// Moves the tokens that the client does not have yet into an update.
void Scheduler::CommitResult(const LaunchedPlan& launched, const LaunchedSlot& live, SlotResult* result) {
  Sequence* const sequence = live.sequence;
  const int step_tokens = result->step_token_count();
  sequence->length = result->length;
  if (absl::Status status = DropReplayed(sequence, result); !status.ok()) {
    return End(sequence, FinishReason::kError, status);
  }
  if (result->nonfinite_logits) {
    if (!result->token_ids.empty()) Deliver(launched, live, result, step_tokens);
    ++counters_.nonfinite_logits;
    return End(sequence, FinishReason::kError,
               absl::InternalError(absl::StrFormat(
                   "the model's logits at position %d are NaN or infinite%s: weights or activations overflow",
                   sequence->length + 1,
                   sequence->constraint == nullptr ? "" : ", or so are all that the constraint allows")));
  }
  const absl::Status taken = TakeTokens(launched, sequence, *result);
  if (absl::IsInternal(taken)) return End(sequence, FinishReason::kError, taken);
  if (options_.keeps_output()) {
    sequence->output_ids.insert(sequence->output_ids.end(), result->token_ids.begin(),
                                result->token_ids.end());
  }
  OfferGenerated(sequence);
  if (result->token_ids.empty() && !result->finished) return;  // the client has all of them
  RequestUpdate& update = Deliver(launched, live, result, step_tokens);
  if (!taken.ok() && !result->finished) return End(sequence, FinishReason::kError, taken);
  if (result->finished) FinishResult(sequence, &update);
}

// Invariant offer: later steps start at `length`, and before it they write only rows within the drafter's
// margin.
void Scheduler::OfferGenerated(Sequence* sequence) {
  if (!options_.reuse_generated || !options_.enable_block_reuse || !sequence->may_offer) return;
  const int offered = sequence->offered_block_count;
  RankState& state = ranks_[sequence->rank];
  state.Offer(sequence, sequence->length - options_.drafter.offer_margin);
  if (sequence->offered_block_count > offered) state.MoveAnswerEnd(sequence);
}

// The update with the result's tokens.
RequestUpdate& Scheduler::Deliver(const LaunchedPlan& launched, const LaunchedSlot& live, SlotResult* result,
                                  int step_tokens) {
  Sequence* const sequence = live.sequence;

  RequestUpdate& update = updates_.emplace_back();
  update.request_id = sequence->request.id;
  update.token_ids = std::move(result->token_ids);
  update.logprobs = std::move(result->logprobs);
  update.first_token = result->first_token;
  if (update.first_token) {
    update.cached_tokens = sequence->reused_len;
    update.queue_seconds = sequence->queue_seconds;
    if (options_.enable_block_reuse) {
      update.queried_tokens = sequence->prompt_len;
      counters_.prefix_queried_tokens += sequence->prompt_len;
      counters_.prefix_hit_tokens += sequence->reused_len;
    }
  }
  if (step_tokens > 0 && !live.given) {
    update.has_step = true;
    update.step = {.drafts_verified = result->drafts_verified,
                   .accepted = step_tokens - 1,
                   .relaxed = result->relaxed_count,
                   .ends_in_draft = result->ends_in_draft,
                   .outside_grammar = live.leaves_grammar ? 1 : 0,
                   .forced_drafts = std::max(0, result->drafts_verified - live.own_drafts),
                   .forced = launched.forced && live.masking != Masking::kMasked};
  }
  return update;
}

void Scheduler::FinishResult(Sequence* sequence, RequestUpdate* update) {
  const std::vector<int32_t>& stop_ids = sequence->request.stop_ids;
  const bool stopped = !update->token_ids.empty() && std::find(stop_ids.begin(), stop_ids.end(),
                                                               update->token_ids.back()) != stop_ids.end();
  update->finish = stopped ? FinishReason::kStop : FinishReason::kLength;
  Leave(sequence);
}

}  // namespace foredraft
