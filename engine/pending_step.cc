#include "engine/pending_step.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

void Append(std::span<const TokenLogprobs> tokens, std::vector<TokenLogprob>& out) {
  for (const TokenLogprobs& token : tokens) {
    TokenLogprob& added =
        out.emplace_back(TokenLogprob{.token_id = token.token_id, .logprob = token.logprob});
    for (int i = 0; i < token.top_count; ++i) {
      added.top.push_back({.token_id = token.top_ids[i], .logprob = token.top_logprobs[i]});
    }
  }
}

}  // namespace

absl::StatusOr<PendingStep> PendingStep::Create(Device& device, int slot_count, int place_capacity,
                                                int step_row_capacity) {
  PendingStep step;
  step.start_ = device.CreateEvent();
  step.prefilled_ = device.CreateEvent();
  step.done_ = device.CreateEvent();
  step.slot_count_ = slot_count;
  ASSIGN_OR_RETURN(step.outputs_, device.AllocatePinnedArray<StepOutput>(place_capacity));
  ASSIGN_OR_RETURN(step.first_outputs_, device.AllocatePinnedArray<StepOutput>(place_capacity));
  ASSIGN_OR_RETURN(step.logprobs_, device.AllocatePinnedArray<TokenLogprobs>(step_row_capacity));
  ASSIGN_OR_RETURN(step.first_logprobs_, device.AllocatePinnedArray<TokenLogprobs>(place_capacity));
  ASSIGN_OR_RETURN(step.drafts_, device.AllocatePinnedArray<SlotDrafts>(slot_count));
  return step;
}

void PendingStep::Begin(Stream& stream, const IterationPlan& plan, int rank) {
  const RankPlan& rank_plan = plan.ranks[rank];
  number_ = plan.number;
  draft_len_ = plan.draft_len;
  has_prefill_ = HasPrefill(plan);
  has_decode_ = plan.decode_bucket > 0;
  ended_slots_.clear();
  for (const PrefillChunk& chunk : rank_plan.prefill_chunks) {
    if (chunk.last) ended_slots_.push_back(chunk.slot);
  }
  places_.clear();
  for (const int32_t slot : rank_plan.live_slots) {
    const auto ended = std::find(ended_slots_.begin(), ended_slots_.end(), slot);
    const int32_t index = static_cast<int32_t>(ended - ended_slots_.begin());
    places_.push_back({.slot = slot, .ended_index = ended == ended_slots_.end() ? -1 : index});
  }
  start_->Record(stream);
}

void PendingStep::EndPrefill(Stream& stream, const SlotState& slots) {
  for (Place& place : places_) place.wants_logprobs = slots.wants_logprobs(place.slot);
  prefilled_->Record(stream);
}

void PendingStep::Download(Device& device, Stream& stream, const StepBuffers& buffers, const SlotState& slots,
                           bool replayed) {
  replayed_ = replayed;
  const auto copy = [&](auto* host, const auto* from, size_t count) {
    if (count > 0) device.CopyToHost(stream, host, from, count * sizeof(*host));
  };
  if (!places_.empty()) {
    const bool logprobs =
        std::any_of(places_.begin(), places_.end(), [](const Place& p) { return p.wants_logprobs; });
    copy(outputs_, buffers.outputs, places_.size());
    copy(drafts_, slots.arrays().drafts, slot_count_);
    copy(first_outputs_, buffers.first_outputs, ended_slots_.size());
    if (logprobs) {
      copy(logprobs_, buffers.logprobs, places_.size() * (draft_len_ + 1));
      copy(first_logprobs_, buffers.first_logprobs, ended_slots_.size());
    }
  }
  done_->Record(stream);
}

RankResult PendingStep::Result() const {
  RankResult result{.number = number_, .replayed = replayed_};
  if (has_prefill_) result.prefill_seconds = prefilled_->SecondsSince(*start_);
  if (has_decode_) result.decode_seconds = done_->SecondsSince(*prefilled_);
  for (size_t place = 0; place < places_.size(); ++place) {
    result.slots.push_back(ResultOf(static_cast<int>(place)));
  }
  return result;
}

// What the prefill gave a slot whose prompt ended, then the decode step's.
SlotResult PendingStep::ResultOf(int index) const {
  const Place& place = places_[index];
  const StepOutput& output = outputs_[index];
  CHECK_EQ(output.slot, place.slot) << "iteration " << number_;
  SlotResult result{.slot = place.slot, .length = output.length};
  if (place.ended_index >= 0) {
    result.first_token = true;
    result.token_ids.push_back(first_outputs_[place.ended_index].token_ids[0]);
    if (place.wants_logprobs) Append({&first_logprobs_[place.ended_index], 1}, result.logprobs);
  }
  result.token_ids.insert(result.token_ids.end(), output.token_ids, output.token_ids + output.emitted_count);
  if (place.wants_logprobs) {
    Append({&logprobs_[size_t(index) * (draft_len_ + 1)], size_t(output.emitted_count)}, result.logprobs);
  }
  result.drafts_verified = output.drafts_verified;
  result.relaxed_count = output.relaxed_count;
  result.finished = output.finished != 0;
  const SlotDrafts& drafts = drafts_[place.slot];
  result.drafts.assign(drafts.tokens, drafts.tokens + drafts.draft_count);
  return result;
}

}  // namespace foredraft
