#include "ranks/plan_runner.h"

#include <pthread.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "ranks/plan_codec.h"

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

}  // namespace

void RunPlans(BoundedQueue<worker::v1::WorkerPlan>& plans, int rank, Executor& executor,
              const std::function<void(absl::StatusOr<RankResult> result)>& done) {
  // A failed launch is queued like the others, so the results of the launches before it are sent first.
  // Nothing is launched after a failure, so there is at most one, behind the plans in flight.
  BoundedQueue<absl::Status> launched(kMaxPlansInFlight + 1);
  std::thread launcher([&] {
    bool failed = false;
    ForEach(plans, [&](const worker::v1::WorkerPlan& plan) {
      if (failed) return;
      const absl::Status status = executor.Launch(DecodePlan(plan, rank));
      failed = !status.ok();
      CHECK(launched.TryPush(absl::Status(status))) << "one-in-flight";
    });
    launched.Close();
  });
  pthread_setname_np(launcher.native_handle(), "launcher");
  ForEach(launched, [&](const absl::Status& status) {
    done(status.ok() ? executor.Collect() : absl::StatusOr<RankResult>(status));
  });
  launcher.join();
}

}  // namespace foredraft
