// Resume: what happens to the sequences when a rank is lost, and how they get back to where they were.

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "scheduler/scheduler.h"

namespace foredraft {

void Scheduler::LoseRanks(const absl::Status& error) {
  if (!options_.resume) EndAll(FinishReason::kError, error);
  std::vector<Sequence*> open;
  std::vector<uint64_t> ended;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->state == SequenceState::kEnded) {
      ended.push_back(id);  // a lost plan named it
    } else {
      open.push_back(sequence.get());
    }
  }
  for (const uint64_t id : ended) sequences_.erase(id);
  std::sort(open.begin(), open.end(), AdmittedFirst());
  in_flight_.clear();
  next_plan_ = 1;
  running_ = 0;
  MakeRanks();
  for (Sequence* sequence : open) {
    CountLoss(sequence);
    if (sequence->state != SequenceState::kWaiting) WaitAgain(sequence);
    if (sequence->losses < kFruitlessLosses) continue;
    End(sequence, FinishReason::kError,
        absl::UnavailableError(
            absl::StrFormat("%s; the request was in a lost step %d times without a new token",
                            error.message(), sequence->losses)));
  }
}

// Counts the loss if it hit a plan with the sequence.
void Scheduler::CountLoss(Sequence* sequence) const {
  if (sequence->plans_in_flight == 0) return;
  const int32_t delivered = static_cast<int32_t>(sequence->output_ids.size());
  if (delivered > sequence->output_len_at_loss) sequence->losses = 0;
  sequence->output_len_at_loss = delivered;
  ++sequence->losses;
}

void Scheduler::WaitAgain(Sequence* sequence) {
  sequence->state = SequenceState::kWaiting;
  sequence->rank = -1;
  sequence->swappable = false;
  sequence->slot = -1;
  for (SequenceBlocks& blocks : sequence->groups) blocks = {.extent = blocks.extent};
  sequence->ends.clear();
  sequence->answer_end = kScratchBlock;
  sequence->owned_len = 0;
  sequence->shrinkable_len = -1;
  sequence->prompt_planned = 0;
  sequence->may_offer = true;
  sequence->length = 0;
  sequence->unresolved_rows = 0;
  sequence->unresolved_steps = 0;
  sequence->confidences.clear();
  sequence->drafts.clear();
  sequence->mask_job = nullptr;
  sequence->live_plans = 0;
  sequence->replay_len = static_cast<int32_t>(sequence->output_ids.size());
  // The prefill samples the first token; the steps after it get the rest.
  sequence->replay_planned = std::min(sequence->replay_len, 1);
  sequence->replay_done = 0;
  sequence->plans_in_flight = 0;
  sequence->last_plan = 0;
  sequence->live_in = 0;
  waiting_.Add(sequence);
  counters_.waiting_prompt_tokens += sequence->prompt_len;
}

// Gives the step the next tokens of the replay, one for each of its rows.
void Scheduler::GiveTokens(LaunchedSlot& live, int draft_len, RankPlan* plan) {
  Sequence* const sequence = live.sequence;
  if (!sequence->replays()) return;
  live.given = true;
  const auto first = sequence->output_ids.begin() + sequence->replay_planned;
  const int32_t count = std::min(
      {draft_len + 1, options_.drafter.given_limit, sequence->replay_len - sequence->replay_planned});
  plan->given_tokens.push_back({.slot = sequence->slot, .token_ids = {first, first + count}});
  sequence->replay_planned += count;
}

// Removes the tokens that were delivered before the loss. INTERNAL if they are not the same.
absl::Status Scheduler::DropReplayed(Sequence* sequence, SlotResult* result) {
  const int32_t count =
      std::min(sequence->replay_len - sequence->replay_done, static_cast<int32_t>(result->token_ids.size()));
  if (count == 0) return absl::OkStatus();
  for (int32_t i = 0; i < count; ++i) {
    const int32_t delivered = sequence->output_ids[sequence->replay_done + i];
    if (result->token_ids[i] == delivered) continue;
    return absl::InternalError(absl::StrFormat(
        "after the loss of a rank, token %d of the answer was computed again as %d; it was %d before",
        sequence->replay_done + i, result->token_ids[i], delivered));
  }
  sequence->replay_done += count;
  counters_.replayed_tokens += count;
  result->token_ids.erase(result->token_ids.begin(), result->token_ids.begin() + count);
  if (!result->logprobs.empty()) {
    result->logprobs.erase(result->logprobs.begin(), result->logprobs.begin() + count);
  }
  result->first_token = false;
  return absl::OkStatus();
}

}  // namespace foredraft
