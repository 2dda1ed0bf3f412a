#ifndef FOREDRAFT_ENGINE_REMOTE_REMOTE_EXECUTOR_H_
#define FOREDRAFT_ENGINE_REMOTE_REMOTE_EXECUTOR_H_

// An Executor whose rank is a worker process at the other end of a stream.

#include "engine/remote/leader.h"
#include "scheduler/plan.h"

namespace foredraft {

class RemoteExecutor : public Executor {
 public:
  RemoteExecutor(Leader& leader, int rank) : leader_(leader), rank_(rank) {}

  absl::Status Launch(const IterationPlan& plan) override;
  // What has come in is handed out even when the group is lost meanwhile.
  absl::StatusOr<RankResult> Collect() override;

 private:
  Leader& leader_;
  const int rank_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_REMOTE_REMOTE_EXECUTOR_H_
