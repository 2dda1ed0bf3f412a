#pragma once

// The executors of a tensor group's ranks as one: its ranks share every request, so the scheduler plans for
// them as for one rank. All get every plan, and all give the same result (docs/invariants.md,
// same-result); the first rank's result is the group's.
//
// Threads: as Executor.

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/plan.h"

namespace foredraft {

class TensorGroupExecutor : public Executor {
 public:
  // first_rank: the number that ranks[0] has among all ranks, for messages. The executors outlive this.
  // `disagreed`, which may be empty, is called for each result that differs.
  TensorGroupExecutor(int first_rank, std::vector<Executor*> ranks, std::function<void()> disagreed = {});

  absl::Status Launch(const IterationPlan& plan) override;
  // The first rank's result, with the times of the slowest one. If another rank fails after that result came,
  // the result is still right and returned, and the next Collect fails. UNAVAILABLE where a rank's result
  // differs from the first one's: that rank is refused, and no token of the iteration is delivered.
  absl::StatusOr<RankResult> Collect() override;
  void Refuse(const absl::Status& why) override { ranks_.front()->Refuse(why); }

  // Begins another life of the ranks. No plan may be in flight.
  void Restart() { failure_ = absl::OkStatus(); }

 private:
  const int first_rank_;
  const std::vector<Executor*> ranks_;
  const std::function<void()> disagreed_;
  absl::Status failure_;  // of Collect's thread
};

}  // namespace foredraft
