#pragma once

// Predicts the duration of decode steps with shapes that were not measured, from measured shapes and other
// buckets. The draft policies decide by it whether a shape is worth a probe. No clock, no randomness. Owner:
// DraftPolicy. Thread: scheduler.

#include <array>

#include "scheduler/policies/step_estimates.h"

namespace foredraft {

// The least squares, over all measured shapes, of the relative error of
//
//   t = a + b B + r B (v + 1) + [K > 0] (c + d B) + K (e + f B)      B: seats; K, v: StepShape
//
// with no cost below 0: r is what a row costs, c and d what a forward that makes drafts does, e and f what
// each draft does. Where too little was measured to tell two costs apart, each gets its share.
class StepCosts {
 public:
  // What `bucket` measured. weight: of each of its shapes.
  void Add(int bucket, const StepTimes& times, double weight);
  // After the last Add.
  void Solve();

  // In seconds. Never decreases as the bucket, K or v grows. 0 where nothing was measured.
  double Seconds(int bucket, StepShape shape) const;

 private:
  static constexpr int kCosts = 7;
  using Costs = std::array<double, kCosts>;

  static Costs Counts(int bucket, StepShape shape);  // of each cost, in the formula
  void SolveFor(const std::array<bool, kCosts>& left_out);

  std::array<Costs, kCosts> products_{};  // the normal equations
  Costs sums_{};
  Costs costs_{};
};

}  // namespace foredraft
