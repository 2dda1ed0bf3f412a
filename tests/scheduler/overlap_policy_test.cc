// The policy on a simulated machine, whose steps have one time with overlap and another without.

#include "scheduler/policies/overlap_policy.h"

#include <gtest/gtest.h>

#include <random>

namespace foredraft {
namespace {

class Machine {
 public:
  struct Load {
    int decode_bucket = 8;
    int draft_len = 0;
    double plain_seconds = 1;
    double overlapped_seconds = 1;
    double noise = 0;     // a tenth of all steps takes up to so much longer, in steps
    int ended_every = 0;  // iterations; a sequence of the 8 ends, 0: never
  };

  // How many of `count` iterations overlapped.
  int Run(const Load& load, int count) {
    int overlapped = 0;
    for (int i = 0; i < count; ++i) {
      const bool overlaps = policy_.overlaps();
      overlapped += overlaps;
      double seconds = overlaps ? load.overlapped_seconds : load.plain_seconds;
      if (std::uniform_int_distribution<int>(0, 9)(random_) == 0) {
        seconds += std::uniform_real_distribution<double>(0, load.noise)(random_);
      }
      policy_.Record({.decode_bucket = load.decode_bucket,
                      .draft_len = load.draft_len,
                      .seconds = seconds,
                      .live_slots = 8,
                      .ended_slots = load.ended_every > 0 && i % load.ended_every == 0});
    }
    return overlapped;
  }

 private:
  OverlapPolicy policy_;
  std::mt19937 random_{7};
};

TEST(OverlapPolicy, OverlapsFromTheStart) { EXPECT_EQ(Machine().Run({}, 60), 60); }

TEST(OverlapPolicy, KeepsOverlapWhereStepsAreFaster) {
  Machine machine;
  const Machine::Load load{.plain_seconds = 1.03, .noise = 5};
  machine.Run(load, 1000);
  EXPECT_GE(machine.Run(load, 10000), 9900) << "trials cost less than one iteration in a hundred";
}

TEST(OverlapPolicy, LeavesOverlapWhereStepsAreSlower) {
  Machine machine;
  const Machine::Load load{.overlapped_seconds = 1.03, .noise = 5};
  machine.Run(load, 1000);
  EXPECT_LE(machine.Run(load, 10000), 100);
}

TEST(OverlapPolicy, WeighsStepsOfEndedSequences) {
  // One slot of eight idles for a step in every four: 1/32 of the work, more than the hundredth gained.
  Machine machine;
  const Machine::Load load{.plain_seconds = 1.01, .ended_every = 4};
  machine.Run(load, 1000);
  EXPECT_LE(machine.Run(load, 10000), 100);
}

TEST(OverlapPolicy, LearnsEachBucketByItself) {
  Machine machine;
  const Machine::Load fast{.decode_bucket = 1, .plain_seconds = 1.05};
  const Machine::Load slow{.decode_bucket = 16, .overlapped_seconds = 1.05};
  machine.Run(fast, 2000);
  machine.Run(slow, 2000);
  EXPECT_GE(machine.Run(fast, 200), 150);
  EXPECT_LE(machine.Run(slow, 200), 50);
}

TEST(OverlapPolicy, FollowsAChange) {
  Machine machine;
  machine.Run({.plain_seconds = 1.05}, 20000);
  const Machine::Load later{.overlapped_seconds = 1.05};
  machine.Run(later, 5000);
  EXPECT_LE(machine.Run(later, 5000), 150);
}

TEST(OverlapPolicy, ComparesOnlyStepsOfTheSameK) {
  // K changes every 30 iterations, less than a trial: nothing can be compared, so overlap stays.
  Machine machine;
  int overlapped = 0;
  for (int i = 0; i < 100; ++i) {
    overlapped += machine.Run({.draft_len = i % 2, .overlapped_seconds = 1.05}, 30);
  }
  EXPECT_GE(overlapped, 3000 * 2 / 3);
}

}  // namespace
}  // namespace foredraft
