#pragma once

// The Executor of a rank that runs in a worker process, behind the leader's stream to it. Owner: Leader.

#include "ranks/leader.h"
#include "scheduler/plan.h"

namespace foredraft {

class RemoteExecutor : public Executor {
 public:
  RemoteExecutor(Leader& leader, int rank) : leader_(leader), rank_(rank) {}

  absl::Status Launch(const IterationPlan& plan) override;
  // Results that have arrived are still returned after the group is lost.
  absl::StatusOr<RankResult> Collect() override;

 private:
  Leader& leader_;
  const int rank_;
};

}  // namespace foredraft
