#include "ranks/plan_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
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

IterationPlan Idle(uint64_t number) {
  IterationPlan plan{.number = number, .prefill_rows = {0}, .ended_prompts = {0}};
  plan.ranks.resize(1);
  return plan;
}

// What RunPlans gives for these plans.
std::vector<std::string> Seen(const std::vector<std::string>& bytes, CountingExecutor& executor) {
  BoundedQueue<std::string> plans(bytes.size());
  for (const std::string& plan : bytes) EXPECT_TRUE(plans.TryPush(std::string(plan)));
  plans.Close();
  std::vector<std::string> seen;
  RunPlans(plans, 0, {.slot_count = 64}, executor, [&seen](const absl::StatusOr<RankResult>& result) {
    seen.push_back(result.ok() ? std::to_string(result->number) : std::string(result.status().message()));
  });
  return seen;
}

TEST(PlanRunner, GivesResultsInOrderAndAFailedLaunchAfterThoseBeforeIt) {
  CountingExecutor executor;
  executor.fail_at = 2;
  EXPECT_THAT(Seen({EncodePlan(Idle(1), 0), EncodePlan(Idle(2), 0)}, executor),
              testing::ElementsAre("1", "launch failed"));
}

TEST(PlanRunner, LaunchesNothingAfterAPlanOutOfItsRanges) {
  IterationPlan forged = Idle(2);
  forged.ranks[0].releases = {1 << 30};
  CountingExecutor executor;
  EXPECT_THAT(Seen({EncodePlan(Idle(1), 0), EncodePlan(forged, 0), EncodePlan(Idle(3), 0)}, executor),
              testing::ElementsAre("1",
                                   "the leader sent a plan that this rank cannot carry out: "
                                   "releases: 1073741824, allowed 0..63"));
  EXPECT_EQ(executor.launched, 1);
}

// Collect of the first plan waits until a third one was refused.
TEST(PlanRunner, HasTwoPlansInFlightAtMost) {
  class Slow : public CountingExecutor {
   public:
    absl::StatusOr<RankResult> Collect() override {
      if (collected == 0) all_pushed.WaitForNotification();
      return CountingExecutor::Collect();
    }
    absl::Notification all_pushed;
  };
  Slow executor;
  BoundedQueue<std::string> plans(kMaxPlansInFlight);
  std::vector<std::string> seen;
  std::thread runner([&] {
    RunPlans(plans, 0, {}, executor, [&seen](const absl::StatusOr<RankResult>& result) {
      seen.push_back(result.ok() ? std::to_string(result->number) : std::string(result.status().message()));
    });
  });
  for (uint64_t number = 1; number <= 3; ++number) {
    while (!plans.TryPush(EncodePlan(Idle(number), 0))) std::this_thread::yield();
  }
  plans.Close();
  while (executor.launched < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  executor.all_pushed.Notify();
  runner.join();
  EXPECT_EQ(executor.launched, 2);
  EXPECT_THAT(seen, testing::ElementsAre("1", "2",
                                         testing::HasSubstr("plans without a result: 3, allowed at most 2")));
}

}  // namespace
}  // namespace foredraft
