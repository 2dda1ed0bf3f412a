#include "tests/bench/free_rank.h"

#include <thread>

namespace foredraft {

absl::Status FreeRank::Launch(const IterationPlan& plan) {
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = StubRank::Launch(plan);
  busy_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return status;
}

absl::StatusOr<RankResult> FreeRank::Collect() {
  if (options_.step_time.count() > 0) {
    std::this_thread::sleep_until(next_result_);
    next_result_ = std::chrono::steady_clock::now() + options_.step_time;
  }
  return StubRank::Collect();
}

int32_t FreeRank::TokenAt(const SlotAdmission&, int /*position*/) {
  constexpr int kFirstWord = 200, kWordCount = 400;
  return static_cast<int32_t>(kFirstWord + token_count_++ % kWordCount);
}

int FreeRank::AcceptedDrafts(const Slot&, int verified) {
  return options_.accept_all ? verified
                             : static_cast<int>(step_count_++ * 2654435761u >> 16) % (verified + 1);
}

}  // namespace foredraft
