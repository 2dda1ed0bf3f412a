#include "tests/scheduler/stub_rank.h"

#include <algorithm>
#include <utility>

namespace foredraft {

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

absl::Status StubRank::Launch(const IterationPlan& plan) {
  const RankPlan& rank = plan.ranks[rank_];
  MoveSlots(rank);
  std::vector<bool> prompt_ended(slots_.size());
  for (const PrefillChunk& chunk : rank.prefill_chunks) {
    if (chunk.last) prompt_ended[chunk.slot] = true;
  }
  RankResult result{.number = plan.number, .decode_seconds = decode_seconds_};
  result.slots.reserve(rank.live_slots.size());
  for (const int32_t slot : rank.live_slots) result.slots.push_back(Step(slot, prompt_ended[slot], plan));
  results_.push_back(std::move(result));
  return absl::OkStatus();
}

absl::StatusOr<RankResult> StubRank::Collect() {
  RankResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

void StubRank::MoveSlots(const RankPlan& plan) {
  for (const int32_t slot : plan.releases) slots_[slot] = {};
  for (const uint64_t image : plan.dropped_images) images_.erase(image);
  for (const SwapOut& swap : plan.swaps_out) images_[swap.image_id] = std::exchange(slots_[swap.slot], {});
  for (const SwapIn& swap : plan.swaps_in) {
    slots_[swap.slot] = std::move(images_[swap.image_id]);
    images_.erase(swap.image_id);
  }
  for (const SlotAdmission& admission : plan.admissions) {
    slots_[admission.slot] = {.active = true, .admission = admission};
  }
}

void StubRank::Emit(Slot* slot, SlotResult* result, int32_t token) {
  const SlotAdmission& admission = slot->admission;
  ++slot->length;
  const std::vector<int32_t>& stops = admission.stop_ids;
  slot->finished =
      slot->length >= admission.length_limit || std::find(stops.begin(), stops.end(), token) != stops.end();
  result->token_ids.push_back(token);
  TokenEmitted(*slot, result);
}

SlotResult StubRank::Step(int slot_index, bool first_token, const IterationPlan& plan) {
  Slot& slot = slots_[slot_index];
  SlotResult result{.slot = slot_index, .first_token = first_token};
  if (first_token) {
    slot.length = slot.admission.prompt_len - 1;
    Emit(&slot, &result, TokenAt(slot.admission, slot.length + 1));
    slot.draft_count = std::min(1, max_draft_len_);
    PromptEnded(slot_index, result.token_ids.front());
  }
  if (!slot.finished) {
    StepBegins(slot_index);
    const int first_position = slot.length;
    const std::vector<GivenTokens>& given = plan.ranks[rank_].given_tokens;
    const auto own = std::find_if(given.begin(), given.end(),
                                  [&](const GivenTokens& tokens) { return tokens.slot == slot_index; });
    if (own != given.end()) {
      Given(slot_index, own->token_ids);
      for (const int32_t token : own->token_ids) Emit(&slot, &result, token);
    } else {
      result.drafts_verified = std::min({slot.draft_count, slot.admission.draft_cap, plan.draft_len});
      const int accepted = AcceptedDrafts(slot, result.drafts_verified);
      for (int i = 0; i <= accepted && !slot.finished; ++i) {
        Emit(&slot, &result, TokenAt(slot.admission, slot.length + 1));
      }
    }
    slot.draft_count = plan.draft_len;
    StepEnds(slot_index, first_position, plan, &result);
  }
  result.length = slot.length;
  result.finished = slot.finished;
  return result;
}

}  // namespace foredraft
