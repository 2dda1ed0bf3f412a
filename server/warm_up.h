#ifndef FOREDRAFT_SERVER_WARM_UP_H_
#define FOREDRAFT_SERVER_WARM_UP_H_

// One small request through the engine before clients are let in: first touches of memory, lazy set-up of
// libraries, and a fault that would otherwise meet the first client.

#include <vector>

#include "absl/status/status.h"
#include "scheduler/plan.h"
#include "scheduler/scheduler.h"

namespace foredraft {

// Runs on the calling thread, with a scheduler of its own; the executors are idle and bare before and after.
absl::Status WarmUp(SchedulerOptions options, const std::vector<Executor*>& executors);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_WARM_UP_H_
