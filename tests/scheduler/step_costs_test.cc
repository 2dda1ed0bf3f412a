// What steps of unmeasured shapes and buckets are expected to take.

#include "scheduler/step_costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace foredraft {
namespace {

constexpr int kMaxDraftLen = 5;
// Bounds below: a thousandth by which each cost is pulled to 0 is some percent where few shapes tell.
const std::vector<StepShape> kTelling = {{}, {3, 3}, {5, 3}, {5, 5}};
using Machine = std::function<double(int bucket, StepShape)>;

// As `machine` measures these shapes in one bucket. The first one is in use.
StepTimes Measure(const Machine& machine, int bucket, const std::vector<StepShape>& shapes) {
  StepTimes times(kMaxDraftLen);
  for (const StepShape shape : shapes) {
    for (int step = 0; step < 4; ++step) {
      times.Observe(shape, machine(bucket, shape), /*is_in_use=*/shape == shapes[0]);
    }
  }
  return times;
}

double WithCosts(int bucket, StepShape shape) {
  const double rows = bucket * (shape.verify_len + 1);
  const double drafting = shape.draft_len > 0 ? 0.4e-3 + 0.03e-3 * bucket : 0;
  return 2e-3 + 0.02e-3 * bucket + 0.1e-3 * rows + drafting + shape.draft_len * (0.05e-3 + 0.01e-3 * bucket);
}

TEST(StepCosts, TwoBucketsTellOfTheOthers) {
  StepCosts costs;
  for (const int bucket : {4, 16}) costs.Add(bucket, Measure(WithCosts, bucket, kTelling), 1);
  costs.Solve();
  for (const int bucket : {1, 2, 8, 64}) {
    for (const StepShape shape : StepShape::All(kMaxDraftLen)) {
      const double truth = WithCosts(bucket, shape);
      EXPECT_NEAR(costs.Seconds(bucket, shape), truth, 0.04 * truth)
          << bucket << ", " << shape.draft_len << "/" << shape.verify_len;
    }
  }
}

// One bucket cannot tell what grows with the seats: the truth lies between nothing and all.
TEST(StepCosts, OneBucketTellsOfItsOwnShapesAndBoundsTheOthers) {
  StepCosts costs;
  costs.Add(8, Measure(WithCosts, 8, kTelling), 1);
  costs.Solve();
  for (const StepShape shape : StepShape::All(kMaxDraftLen)) {
    const double here = WithCosts(8, shape);
    EXPECT_NEAR(costs.Seconds(8, shape), here, 0.02 * here) << shape.draft_len << "/" << shape.verify_len;
    EXPECT_GT(costs.Seconds(32, shape), here);
    EXPECT_LT(costs.Seconds(32, shape), 4 * here);
  }
}

// Measured times may fall where more is done: noise. Costs do not.
TEST(StepCosts, NeverDecreaseAsMoreIsDone) {
  const Machine falling = [](int bucket, StepShape shape) {
    return 5e-3 - 0.3e-3 * shape.draft_len - 0.2e-3 * shape.verify_len - 0.1e-3 * bucket;
  };
  StepCosts costs;
  for (const int bucket : {2, 16}) costs.Add(bucket, Measure(falling, bucket, kTelling), 1);
  costs.Solve();
  for (const StepShape shape : StepShape::All(kMaxDraftLen)) {
    EXPECT_GT(costs.Seconds(1, shape), 0);
    EXPECT_LE(costs.Seconds(4, shape), costs.Seconds(8, shape));
    for (const StepShape less : StepShape::All(shape.draft_len)) {
      if (less.verify_len > shape.verify_len) continue;
      EXPECT_LE(costs.Seconds(4, less), costs.Seconds(4, shape));
    }
  }
}

TEST(StepCosts, AreNearestToTheBucketsThatWeighMost) {
  const Machine slow = [](int bucket, StepShape shape) { return 3 * WithCosts(bucket, shape); };
  const auto ratio = [&slow](double weight) {
    StepCosts costs;
    costs.Add(8, Measure(WithCosts, 8, kTelling), 1 - weight);
    costs.Add(8, Measure(slow, 8, kTelling), weight);
    costs.Solve();
    return costs.Seconds(8, {5, 3}) / WithCosts(8, {5, 3});
  };
  EXPECT_NEAR(ratio(0.001), 1, 0.05);
  EXPECT_NEAR(ratio(0.999), 3, 0.05);
}

TEST(StepCosts, AreNoneWhereNothingWasMeasured) {
  StepCosts costs;
  costs.Add(4, StepTimes(kMaxDraftLen), 1);
  costs.Solve();
  EXPECT_EQ(costs.Seconds(4, {5, 5}), 0);
}

}  // namespace
}  // namespace foredraft
