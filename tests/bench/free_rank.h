#ifndef FOREDRAFT_TESTS_BENCH_FREE_RANK_H_
#define FOREDRAFT_TESTS_BENCH_FREE_RANK_H_

// A rank that costs next to nothing, to measure what is above it. Every step accepts as many drafts as the
// script says; tokens are ordinary words of abacus's tokenizer; a sequence ends at its length limit. It knows
// no swaps.

#include <chrono>
#include <cstdint>
#include <deque>
#include <vector>

#include "scheduler/plan.h"

namespace foredraft {

struct FreeRankOptions {
  int rank = 0;  // which of the plan's
  int slot_count = 64;
  int max_draft_len = 0;
  bool accept_all = true;                           // false: 0..v drafts, evenly
  std::chrono::steady_clock::duration step_time{};  // results come no faster than this
};

class FreeRank : public Executor {
 public:
  explicit FreeRank(const FreeRankOptions& options) : options_(options), slots_(options.slot_count) {}

  absl::Status Launch(const IterationPlan& plan) override;
  absl::StatusOr<RankResult> Collect() override;

  // What it does cost.
  double busy_seconds() const { return busy_seconds_; }

 private:
  struct Slot {
    int32_t length = 0;  // p
    int32_t length_limit = 0;
    int32_t draft_cap = 0;
    int32_t draft_count = 0;
    bool prompt_ended = false;  // in this plan: its first token is due
    bool finished = false;
  };

  SlotResult Step(int32_t slot_index, int draft_len);
  int32_t NextToken();

  const FreeRankOptions options_;
  std::vector<Slot> slots_;
  std::deque<RankResult> results_;
  uint32_t token_count_ = 0;
  uint32_t step_count_ = 0;
  double busy_seconds_ = 0;
  std::chrono::steady_clock::time_point next_result_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_FREE_RANK_H_
