#include "ranks/remote_executor.h"

namespace foredraft {

absl::Status RemoteExecutor::Launch(const IterationPlan& plan) { return leader_.SendPlan(rank_, plan); }

absl::StatusOr<RankResult> RemoteExecutor::Collect() { return leader_.TakeResult(rank_); }

}  // namespace foredraft
