#pragma once

// A stub rank that costs next to nothing, to measure the layers above it. Tokens are ordinary words of
// abacus's tokenizer; a sequence ends at its length limit.

#include <chrono>
#include <cstdint>

#include "tests/scheduler/stub_rank.h"

namespace foredraft {

struct FreeRankOptions {
  int rank = 0;  // index in the plan's ranks
  int slot_count = 64;
  int max_draft_len = 0;
  bool accept_all = true;                           // false: 0..v drafts, evenly
  std::chrono::steady_clock::duration step_time{};  // least time between two results
};

class FreeRank : public StubRank {
 public:
  explicit FreeRank(const FreeRankOptions& options)
      : StubRank(options.rank, options.slot_count, options.max_draft_len), options_(options) {}

  absl::Status Launch(const IterationPlan& plan) override;
  absl::StatusOr<RankResult> Collect() override;

  // CPU time spent in this rank.
  double busy_seconds() const { return busy_seconds_; }

 private:
  int32_t TokenAt(const SlotAdmission& admission, int position) override;
  int AcceptedDrafts(const Slot& slot, int verified) override;

  const FreeRankOptions options_;
  uint32_t token_count_ = 0;
  uint32_t step_count_ = 0;
  double busy_seconds_ = 0;
  std::chrono::steady_clock::time_point next_result_;
};

}  // namespace foredraft
