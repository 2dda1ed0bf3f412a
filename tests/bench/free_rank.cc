#include "tests/bench/free_rank.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"

namespace foredraft {

absl::Status FreeRank::Launch(const IterationPlan& plan) {
  const auto start = std::chrono::steady_clock::now();
  const RankPlan& rank = plan.ranks[options_.rank];
  CHECK(rank.swaps_out.empty() && rank.swaps_in.empty());
  for (const SlotAdmission& admission : rank.admissions) {
    slots_[admission.slot] = {.length = admission.prompt_len,
                              .length_limit = admission.length_limit,
                              .draft_cap = admission.draft_cap};
  }
  for (const PrefillChunk& chunk : rank.prefill_chunks) slots_[chunk.slot].prompt_ended = chunk.last;
  RankResult result{.number = plan.number};
  result.slots.reserve(rank.live_slots.size());
  for (const int32_t slot : rank.live_slots) result.slots.push_back(Step(slot, plan.draft_len));
  results_.push_back(std::move(result));
  busy_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return absl::OkStatus();
}

absl::StatusOr<RankResult> FreeRank::Collect() {
  if (options_.step_time.count() > 0) {
    std::this_thread::sleep_until(next_result_);
    next_result_ = std::chrono::steady_clock::now() + options_.step_time;
  }
  RankResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

int32_t FreeRank::NextToken() {
  constexpr int kFirstWord = 200, kWordCount = 400;
  return static_cast<int32_t>(kFirstWord + token_count_++ % kWordCount);
}

SlotResult FreeRank::Step(int32_t slot_index, int draft_len) {
  Slot& slot = slots_[slot_index];
  SlotResult result{.slot = slot_index, .first_token = slot.prompt_ended};
  if (slot.prompt_ended) {
    result.token_ids.push_back(NextToken());
    slot.finished = slot.length >= slot.length_limit;
    slot.draft_count = std::min(1, options_.max_draft_len);
    slot.prompt_ended = false;
  }
  if (!slot.finished) {
    const int verified = std::min({slot.draft_count, slot.draft_cap, draft_len});
    const int accepted =
        options_.accept_all ? verified : static_cast<int>(step_count_++ * 2654435761u >> 16) % (verified + 1);
    const int emitted = std::min(accepted + 1, slot.length_limit - slot.length);
    result.drafts_verified = verified;
    result.token_ids.reserve(emitted + 1);
    for (int i = 0; i < emitted; ++i) result.token_ids.push_back(NextToken());
    slot.length += emitted;
    slot.draft_count = draft_len;
    slot.finished = slot.length >= slot.length_limit;
  }
  result.length = slot.length;
  result.finished = slot.finished;
  return result;
}

}  // namespace foredraft
