#include "ranks/plan_runner.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "ranks/plan_codec.h"
#include "ranks/range_check.h"

namespace foredraft {
namespace {

// Calls `action` with each item until the queue is closed and drained.
template <class T, class Action>
void ForEach(BoundedQueue<T>& queue, const Action& action) {
  constexpr std::chrono::hours kDeadline(1);  // past it the wait starts again: Close ends it
  while (true) {
    std::optional<T> item = queue.Pop(kDeadline);
    if (item.has_value()) {
      action(*std::move(item));
    } else if (queue.closed()) {
      return;
    }
  }
}

absl::Status Launch(const std::string& bytes, int index, const PlanLimits& limits, int in_flight,
                    Executor& executor) {
  absl::StatusOr<IterationPlan> plan = DecodePlan(bytes, index, limits);
  absl::Status fault = plan.status();
  if (in_flight == kMaxPlansInFlight) {
    fault = RefuseField("plans without a result", in_flight + 1, absl::StrCat("at most ", kMaxPlansInFlight));
  }
  if (fault.ok()) return executor.Launch(*plan);
  return absl::InvalidArgumentError(
      absl::StrCat("the leader sent a plan that this rank cannot carry out: ", fault.message()));
}

}  // namespace

void RunPlans(BoundedQueue<std::string>& plans, int index, const PlanLimits& limits, Executor& executor,
              const std::function<void(absl::StatusOr<RankResult> result)>& done) {
  // A failed launch is queued like the others, so the results of the launches before it are sent first.
  // Nothing is launched after a failure, so there is at most one, after the plans in flight.
  BoundedQueue<absl::Status> launched(kMaxPlansInFlight + 1);
  std::atomic<int> in_flight = 0;  // launched and not collected
  std::thread launcher([&] {
    bool failed = false;
    ForEach(plans, [&](const std::string& plan) {
      if (failed) return;
      absl::Status status = Launch(plan, index, limits, in_flight.load(), executor);
      failed = !status.ok();
      if (!failed) ++in_flight;
      CHECK(launched.TryPush(absl::Status(status))) << "two-in-flight";
    });
    launched.Close();
  });
  pthread_setname_np(launcher.native_handle(), "launcher");
  ForEach(launched, [&](const absl::Status& status) {
    absl::StatusOr<RankResult> result = status.ok() ? executor.Collect() : absl::StatusOr<RankResult>(status);
    --in_flight;
    done(std::move(result));
  });
  launcher.join();
}

}  // namespace foredraft
