#include "ranks/plan_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "ranks/plan_codec.h"

namespace foredraft {
namespace {

// Collects in launch order; the launch of `fail_at` fails.
class CountingExecutor : public Executor {
 public:
  absl::Status Launch(const IterationPlan& plan) override {
    if (plan.number == fail_at) return absl::InternalError("launch failed");
    ++launched;
    return absl::OkStatus();
  }
  absl::StatusOr<RankResult> Collect() override {
    EXPECT_GT(launched, static_cast<int>(collected));
    return RankResult{.number = ++collected};
  }

  uint64_t fail_at = 0;
  std::atomic<int> launched = 0;
  uint64_t collected = 0;
};

TEST(PlanRunner, GivesResultsInOrderAndAFailedLaunchAfterThoseBeforeIt) {
  BoundedQueue<worker::v1::WorkerPlan> plans(kMaxPlansInFlight);
  for (const uint64_t number : {1, 2}) {
    IterationPlan plan{.number = number, .prefill_rows = {0}};
    plan.ranks.resize(1);
    ASSERT_TRUE(plans.TryPush(EncodePlan(plan, 0)));
  }
  plans.Close();
  CountingExecutor executor;
  executor.fail_at = 2;
  std::vector<std::string> seen;
  RunPlans(plans, 0, executor, [&seen](const absl::StatusOr<RankResult>& result) {
    seen.push_back(result.ok() ? std::to_string(result->number) : std::string(result.status().message()));
  });
  EXPECT_THAT(seen, testing::ElementsAre("1", "launch failed"));
}

}  // namespace
}  // namespace foredraft
