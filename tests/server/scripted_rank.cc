#include "tests/server/scripted_rank.h"

#include <utility>

namespace foredraft {

void ScriptedRank::SetScript(uint64_t seed, std::vector<int32_t> token_ids) {
  std::lock_guard<std::mutex> lock(mutex_);
  scripts_[seed] = std::move(token_ids);
}

int32_t ScriptedRank::ScriptedTokenAt(uint64_t seed, int index) const {
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

absl::StatusOr<RankResult> ScriptedRank::Collect() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, step_time_, [this] { return lost_; });
    changed_.wait(lock, [this] { return !held_ || lost_; });
    if (lost_) return absl::DeadlineExceededError("no answer");
  }
  return StubRank::Collect();
}

int32_t ScriptedRank::TokenAt(const SlotAdmission& admission, int position) {
  return ScriptedTokenAt(admission.sampling.seed, position - admission.prompt_len);
}

int32_t ScriptedRank::Masked(int32_t token, const TokenMask& mask) {
  if (mask.Allows(token)) return token;
  int32_t lowest = 0;
  while (!mask.Allows(lowest)) ++lowest;
  return lowest;
}

int ScriptedRank::AcceptedDrafts(const Slot& slot, int verified) {
  const int index = slot.length + 1 - slot.admission.prompt_len;
  return static_cast<int>(Mix(slot.admission.sampling.seed, index + 77) % (verified + 1));
}

void ScriptedRank::TokenEmitted(const Slot& slot, SlotResult* result) {
  if (slot.admission.logprob_count < 0) return;
  const int32_t token = result->token_ids.back();
  TokenLogprob logprob{.token_id = token, .logprob = -0.25f};
  for (int i = 0; i < slot.admission.logprob_count; ++i) logprob.top.push_back({token + i, -0.25f - i});
  result->logprobs.push_back(std::move(logprob));
}

}  // namespace foredraft
