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
// with no cost below 0: r is the cost of a row, c and d are those of a forward that makes drafts, e and f
// those of each draft. Where too little was measured to tell two costs apart, they share the sum.
class StepCosts {
 public:
  // Adds the times that `bucket` measured, each shape's with `weight`.
  void Add(int bucket, const StepTimes& times, double weight);
  // Called after the last Add.
  void Solve();

  // The predicted time in seconds. Never decreases as the bucket, K or v grows. 0 where nothing was measured.
  double Seconds(int bucket, StepShape shape) const;

 private:
  static constexpr int kCosts = 7;
  using Costs = std::array<double, kCosts>;

  static Costs Counts(int bucket, StepShape shape);  // the factor of each cost in the formula
  void SolveFor(const std::array<bool, kCosts>& left_out);

  std::array<Costs, kCosts> products_{};  // the normal equations
  Costs sums_{};
  Costs costs_{};
};

}  // namespace foredraft
