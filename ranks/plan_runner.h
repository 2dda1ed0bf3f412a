#pragma once

// The worker's loop between its plan queue and its executor: it launches plans as they arrive and collects
// their results in the same order. It has no stream: its caller fills the queue and sends the results.

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bounded_queue.h"
#include "scheduler/field_visitor.h"
#include "scheduler/plan.h"

namespace foredraft {

// Carries out the plans (EncodePlan) of tensor group `index` until `plans` is closed and drained. `done` gets
// each plan's result, or the error of its decoding, launch or collection; after an error of decoding or
// launch, later plans are dropped. Launch runs on a thread of its own (`launcher`), Collect and `done` on the
// caller's.
void RunPlans(BoundedQueue<std::string>& plans, int index, const PlanLimits& limits, Executor& executor,
              const std::function<void(absl::StatusOr<RankResult> result)>& done);

}  // namespace foredraft
