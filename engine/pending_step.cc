#include "engine/pending_step.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

// Appends the logprobs of the emitted tokens; `rows` has those of each row's own token. The two tokens differ
// where relaxed or forced acceptance emitted a draft, and where tokens were given.
void Append(std::span<const int32_t> emitted, const LogprobOutput* rows, std::vector<TokenLogprob>& out) {
  for (size_t row = 0; row < emitted.size(); ++row) {
    const LogprobOutput& token = rows[row];
    const bool is_own = token.token_id == emitted[row];
    TokenLogprob& added = out.emplace_back(
        TokenLogprob{.token_id = emitted[row], .logprob = is_own ? token.logprob : token.draft_logprob});
    for (int i = 0; i < token.top_count; ++i) {
      added.top.push_back({.token_id = token.top_ids[i], .logprob = token.top_logprobs[i]});
    }
  }
}

}  // namespace

absl::StatusOr<PendingStep> PendingStep::Create(Device& device, const EngineOptions& options) {
  const int bucket = options.batch_sizes.back();
  PendingStep step;
  step.confidences_ = options.cuts_drafts;
  step.start_ = device.CreateEvent();
  step.prefilled_ = device.CreateEvent();
  step.done_ = device.CreateEvent();
  ASSIGN_OR_RETURN(step.outputs_, device.AllocatePinnedArray<StepOutput>(bucket));
  ASSIGN_OR_RETURN(step.first_outputs_, device.AllocatePinnedArray<StepOutput>(bucket));
  ASSIGN_OR_RETURN(step.logprobs_, device.AllocatePinnedArray<LogprobOutput>(options.largest_step()));
  ASSIGN_OR_RETURN(step.first_logprobs_, device.AllocatePinnedArray<LogprobOutput>(bucket));
  ASSIGN_OR_RETURN(step.drafts_, device.AllocatePinnedArray<SlotDrafts>(options.max_batch_size));
  return step;
}

void PendingStep::Begin(const Rank& rank, const IterationPlan& plan, int index) {
  const RankPlan& rank_plan = plan.ranks[index];
  number_ = plan.number;
  draft_len_ = plan.draft_len;
  has_prefill_ = HasPrefill(plan);
  has_decode_ = plan.decode_bucket > 0;
  ended_slots_.clear();
  for (const PrefillChunk& chunk : rank_plan.prefill_chunks) {
    if (chunk.last) ended_slots_.push_back(chunk.slot);
  }
  live_slots_.clear();
  for (const int32_t slot : rank_plan.live_slots) {
    const auto ended = std::find(ended_slots_.begin(), ended_slots_.end(), slot);
    const int32_t ended_index = static_cast<int32_t>(ended - ended_slots_.begin());
    live_slots_.push_back({.slot = slot, .ended_index = ended == ended_slots_.end() ? -1 : ended_index});
  }
  start_->Record(*rank.stream);
}

void PendingStep::EndPrefill(const Rank& rank) {
  for (LiveSlot& live : live_slots_) {
    live.wants_logprobs = rank.slots.wants_logprobs(live.slot);
    live.constrained = rank.slots.constrained(live.slot);
  }
  prefilled_->Record(*rank.stream);
}

void PendingStep::Download(const Rank& rank, bool replayed) {
  replayed_ = replayed;
  const StepBuffers& b = rank.buffers;
  const auto copy = [&](auto* host, const auto* from, size_t count) {
    if (count > 0) rank.device->CopyToHost(*rank.stream, host, from, count * sizeof(*host));
  };
  if (!live_slots_.empty()) {
    copy(outputs_, b.outputs, live_slots_.size());
    copy(first_outputs_, b.first_outputs, ended_slots_.size());
    if (std::any_of(live_slots_.begin(), live_slots_.end(),
                    [](const LiveSlot& live) { return live.wants_logprobs; })) {
      copy(logprobs_, b.logprobs, live_slots_.size() * (draft_len_ + 1));
      copy(first_logprobs_, b.first_logprobs, ended_slots_.size());
    }
  }
  if (std::any_of(live_slots_.begin(), live_slots_.end(),
                  [](const LiveSlot& live) { return live.constrained; })) {
    copy(drafts_, rank.slots.arrays().drafts, rank.slots.slot_count());
  }
  done_->Record(*rank.stream);
}

RankResult PendingStep::Result() const {
  RankResult result{.number = number_, .replayed = replayed_};
  if (has_prefill_) result.prefill_seconds = prefilled_->SecondsSince(*start_);
  if (has_decode_) result.decode_seconds = done_->SecondsSince(*prefilled_);
  for (size_t i = 0; i < live_slots_.size(); ++i) result.slots.push_back(ResultOf(static_cast<int>(i)));
  return result;
}

// The slot's result: the prefill's first token if the prompt ended there, then the decode step's tokens.
SlotResult PendingStep::ResultOf(int index) const {
  const LiveSlot& live = live_slots_[index];
  const StepOutput& output = outputs_[index];
  CHECK_EQ(output.slot, live.slot) << "iteration " << number_;
  SlotResult result{.slot = live.slot, .length = output.length};
  result.nonfinite_logits = output.nonfinite != 0;
  if (live.ended_index >= 0 && first_outputs_[live.ended_index].nonfinite != 0) {
    result.nonfinite_logits = true;
  } else if (live.ended_index >= 0) {
    result.first_token = true;
    result.token_ids.push_back(first_outputs_[live.ended_index].token_ids[0]);
    if (live.wants_logprobs) {
      Append(result.token_ids, &first_logprobs_[live.ended_index], result.logprobs);
    }
  }
  result.token_ids.insert(result.token_ids.end(), output.token_ids, output.token_ids + output.emitted_count);
  if (live.wants_logprobs) {
    Append({output.token_ids, size_t(output.emitted_count)}, &logprobs_[output.first_row], result.logprobs);
  }
  result.drafts_verified = output.drafts_verified;
  result.relaxed_count = output.relaxed_count;
  result.ends_in_draft = output.ends_in_draft != 0;
  result.finished = output.finished != 0;
  if (confidences_ && output.emitted_count > 0 && !result.finished) {
    result.confidences.assign(output.confidences, output.confidences + draft_len_);
  }
  if (live.constrained && !result.finished) {
    const SlotDrafts& drafts = drafts_[live.slot];
    result.drafts.assign(drafts.tokens, drafts.tokens + drafts.draft_count);
  }
  return result;
}

}  // namespace foredraft
