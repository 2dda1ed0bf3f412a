#include "engine/remote/remote_executor.h"

#include "engine/remote/plan_codec.h"

namespace foredraft {

absl::Status RemoteExecutor::Launch(const IterationPlan& plan) {
  return leader_.SendPlan(rank_, EncodePlan(plan, rank_));
}

absl::StatusOr<RankResult> RemoteExecutor::Collect() { return leader_.TakeResult(rank_); }

}  // namespace foredraft
