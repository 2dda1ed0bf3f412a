#include "scheduler/mask_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "scheduler/mask_budget.h"

namespace foredraft {
namespace {

TEST(MaskBudget, IsPaidStepByStep) {
  MaskBudget budget(/*thread_count=*/2);
  budget.Charge(7, 3 * budget.per_step());
  budget.Charge(8, 1);
  EXPECT_EQ(budget.Owes(9), 0);
  budget.Pay();
  EXPECT_EQ(budget.Owes(8), 0);
  EXPECT_EQ(budget.Owes(7), 2 * budget.per_step());
  budget.Pay();
  budget.Pay();
  EXPECT_EQ(budget.Owes(7), 0);
  const int64_t least = budget.per_step();
  budget.Observe(0);
  EXPECT_EQ(budget.per_step(), least);
  budget.Observe(0.020);  // longer steps bear more
  EXPECT_GT(budget.per_step(), 10 * least);
}

TEST(MaskWorkers, RunEveryJobOnce) {
  for (const int threads : {1, 2, 5}) {
    MaskWorkers workers(threads);
    for (const int count : {0, 1, 2, 100, 3}) {
      std::vector<std::atomic<int>> runs(count);
      workers.Run(count, [&](int i) { ++runs[i]; });
      for (const auto& times : runs) EXPECT_EQ(times, 1);
    }
  }
}

}  // namespace
}  // namespace foredraft
