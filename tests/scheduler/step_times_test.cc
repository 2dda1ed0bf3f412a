// What steps are expected to take: of measured shapes (StepTimes), and of other shapes and buckets
// (StepCosts).

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "scheduler/policies/step_costs.h"

namespace foredraft {
namespace {

constexpr int kMaxDraftLen = 5;
// Bounds below: a thousandth by which each cost is pulled to 0 is some percent where few shapes tell.
const std::vector<StepShape> kTelling = {{}, {3, 3}, {5, 3}, {5, 5}};
using Machine = std::function<double(int bucket, StepShape)>;

// As `machine` measures these shapes in one bucket.
StepTimes Measure(const Machine& machine, int bucket, const std::vector<StepShape>& shapes) {
  StepTimes times(kMaxDraftLen);
  for (const StepShape shape : shapes) {
    for (int step = 0; step < 4; ++step) times.Observe(shape, machine(bucket, shape));
  }
  return times;
}

double WithCosts(int bucket, StepShape shape) {
  const double rows = bucket * (shape.verify_len + 1);
  const double drafting = shape.draft_len > 0 ? 0.4e-3 + 0.03e-3 * bucket : 0;
  return 2e-3 + 0.02e-3 * bucket + 0.1e-3 * rows + drafting + shape.draft_len * (0.05e-3 + 0.01e-3 * bucket);
}

void Observe(StepTimes& times, StepShape shape, double seconds, int steps) {
  for (int step = 0; step < steps; ++step) times.Observe(shape, seconds);
}

// A quarter of its time too few, by luck, put the shape to use: its own steps correct it, and it takes
// the others along only a little.
TEST(StepTimes, AShapeInUseCorrectsItself) {
  StepTimes times(kMaxDraftLen);
  Observe(times, {0, 0}, 1e-3, 20);
  Observe(times, {5, 5}, 3e-3, 200);
  Observe(times, {4, 4}, 2.1e-3, 3);  // in truth 2.8
  Observe(times, {4, 4}, 2.8e-3, 15);
  EXPECT_NEAR(times.Measured({4, 4}), 2.8e-3, 0.05 * 2.8e-3);
  EXPECT_NEAR(times.Measured({5, 5}), 3e-3, 0.1 * 3e-3);
  EXPECT_NEAR(times.Measured({0, 0}), 1e-3, 0.1 * 1e-3);
}

TEST(StepTimes, ASlowerMachineSlowsEveryShape) {
  for (const double slowness : {1.1, 2.0, 0.5}) {
    StepTimes times(kMaxDraftLen);
    Observe(times, {0, 0}, 1e-3, 20);
    Observe(times, {5, 5}, 3e-3, 200);
    Observe(times, {5, 5}, slowness * 3e-3, 60);
    EXPECT_NEAR(times.Measured({5, 5}), slowness * 3e-3, 0.02 * slowness * 3e-3) << slowness;
    EXPECT_NEAR(times.Measured({0, 0}), slowness * 1e-3, 0.05 * slowness * 1e-3) << slowness;
  }
}

// As contexts grow: half a percent a step.
TEST(StepTimes, FollowACommonChange) {
  StepTimes times(kMaxDraftLen);
  Observe(times, {0, 0}, 1e-3, 20);
  Observe(times, {5, 5}, 3e-3, 20);
  double slowness = 1;
  for (int step = 0; step < 100; ++step) times.Observe({5, 5}, 3e-3 * (slowness *= 1.005));
  EXPECT_NEAR(times.Measured({5, 5}), slowness * 3e-3, 0.03 * slowness * 3e-3);
  EXPECT_NEAR(times.Measured({0, 0}), slowness * 1e-3, 0.05 * slowness * 1e-3);
}

// One step of a hundred is ten times as long, and compares no worse.
TEST(StepTimes, SingleSlowStepsAreForgotten) {
  StepTimes times(kMaxDraftLen);
  Observe(times, {0, 0}, 1e-3, 20);
  for (int round = 0; round < 5; ++round) {
    Observe(times, {5, 5}, 3e-3, 99);
    times.Observe({5, 5}, 30e-3);
  }
  Observe(times, {5, 5}, 3e-3, 20);
  EXPECT_NEAR(times.Measured({5, 5}) / times.Measured({0, 0}), 3, 0.1);
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
