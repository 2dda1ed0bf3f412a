#include "tests/server/scripted_rank.h"

#include <algorithm>
#include <utility>

namespace foredraft {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

void ScriptedRank::SetScript(uint64_t seed, std::vector<int32_t> token_ids) {
  std::lock_guard<std::mutex> lock(mutex_);
  scripts_[seed] = std::move(token_ids);
}

int32_t ScriptedRank::TokenAt(uint64_t seed, int index) const {
  constexpr int kFirstWord = 200, kWordCount = 400;  // ordinary tokens of abacus's tokenizer
  std::lock_guard<std::mutex> lock(mutex_);
  const auto script = scripts_.find(seed);
  if (script != scripts_.end() && index < static_cast<int>(script->second.size()))
    return script->second[index];
  return static_cast<int32_t>(kFirstWord + Mix(seed, index) % kWordCount);
}

void ScriptedRank::Hold() {
  std::lock_guard<std::mutex> lock(mutex_);
  held_ = true;
}

void ScriptedRank::Release() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = false;
  }
  changed_.notify_all();
}

void ScriptedRank::Lose() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lost_ = true;
    held_ = false;
  }
  changed_.notify_all();
}

absl::Status ScriptedRank::Launch(const IterationPlan& plan) {
  const RankPlan& rank = plan.ranks.front();
  for (int32_t slot : rank.releases) slots_.erase(slot);
  for (uint64_t image : rank.dropped_images) images_.erase(image);
  for (const SwapOut& swap : rank.swaps_out) {
    images_[swap.image_id] = slots_.at(swap.slot);
    slots_.erase(swap.slot);
  }
  for (const SwapIn& swap : rank.swaps_in) {
    slots_[swap.slot] = images_.at(swap.image_id);
    images_.erase(swap.image_id);
  }
  for (const SlotAdmission& admission : rank.admissions) slots_[admission.slot] = {.admission = admission};
  std::vector<int32_t> ended_prompts;
  for (const PrefillChunk& chunk : rank.prefill_chunks) {
    if (chunk.last) ended_prompts.push_back(chunk.slot);
  }
  RankResult result{.number = plan.number};
  for (int32_t slot : rank.live_slots) {
    const bool first_token = std::count(ended_prompts.begin(), ended_prompts.end(), slot) > 0;
    result.slots.push_back(Step(slot, plan.draft_len, first_token));
  }
  results_.push_back(std::move(result));
  return absl::OkStatus();
}

absl::StatusOr<RankResult> ScriptedRank::Collect() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, options_.step_time, [this] { return lost_; });  // the device at work
    changed_.wait(lock, [this] { return !held_ || lost_; });
    if (lost_) return absl::DeadlineExceededError("no answer");
  }
  RankResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

void ScriptedRank::Emit(Slot& slot, SlotResult& result) {
  const SlotAdmission& admission = slot.admission;
  const int32_t token = TokenAt(admission.sampling.seed, slot.index);
  result.token_ids.push_back(token);
  if (admission.logprob_count >= 0) {
    TokenLogprob logprob{.token_id = token, .logprob = -0.25f};
    for (int i = 0; i < admission.logprob_count; ++i) logprob.top.push_back({token + i, -0.25f - i});
    result.logprobs.push_back(std::move(logprob));
  }
  const int position = admission.prompt_len + slot.index++;
  const std::vector<int32_t>& stops = admission.stop_ids;
  slot.finished = position >= admission.length_limit || std::count(stops.begin(), stops.end(), token) > 0;
  result.length = position;
}

SlotResult ScriptedRank::Step(int slot_index, int draft_len, bool first_token) {
  Slot& slot = slots_.at(slot_index);
  SlotResult result{.slot = slot_index, .first_token = first_token};
  result.length = slot.admission.prompt_len + slot.index - 1;
  if (first_token) {
    Emit(slot, result);
    slot.draft_count = options_.max_draft_len > 0 ? 1 : 0;
  }
  if (!slot.finished) {
    const int verified = std::min({slot.draft_count, slot.admission.draft_cap, draft_len});
    const int accepted =
        static_cast<int>(Mix(slot.admission.sampling.seed, slot.index + 77) % (verified + 1));
    result.drafts_verified = verified;
    for (int i = 0; i <= accepted && !slot.finished; ++i) Emit(slot, result);
    slot.draft_count = draft_len;
  }
  result.finished = slot.finished;
  return result;
}

}  // namespace foredraft
