#pragma once

// Runs one small request through the engine before the server accepts clients, so that first touches of
// memory, lazy initialisation of libraries and faults do not hit the first client.

#include <vector>

#include "absl/status/status.h"
#include "scheduler/plan.h"
#include "scheduler/scheduler.h"

namespace foredraft {

// Runs on the calling thread, with a scheduler of its own. Before and after, the executors are idle and have
// no sequences.
absl::Status WarmUp(SchedulerOptions options, const std::vector<Executor*>& executors);

}  // namespace foredraft
