#include "scheduler/policies/step_costs.h"

#include <algorithm>
#include <numeric>

namespace foredraft {
namespace {

constexpr double kPull = 1e-3;  // weight that pulls each cost towards 0; the measured times have weight 1

}  // namespace

StepCosts::Costs StepCosts::Counts(int bucket, StepShape shape) {
  const double seats = bucket, drafts = shape.draft_len, drafting = drafts > 0;
  return {1, seats, seats * (shape.verify_len + 1), drafting, drafting * seats, drafts, drafts * seats};
}

void StepCosts::Add(int bucket, const StepTimes& times, double weight) {
  for (const StepShape shape : times.shapes()) {
    if (!times.known(shape)) continue;
    const Costs counts = Counts(bucket, shape);
    const double seconds = times.Measured(shape);
    for (int i = 0; i < kCosts; ++i) {
      for (int j = 0; j < kCosts; ++j)
        products_[i][j] += weight * counts[i] * counts[j] / (seconds * seconds);
      sums_[i] += weight * counts[i] / seconds;
    }
  }
}

// Leaves out costs that would be negative, one after another.
void StepCosts::Solve() {
  std::array<bool, kCosts> left_out{};
  for (int i = 0; i < kCosts; ++i) left_out[i] = products_[i][i] == 0;
  while (true) {
    SolveFor(left_out);
    const auto least = std::min_element(costs_.begin(), costs_.end());
    if (*least >= 0) return;
    left_out[least - costs_.begin()] = true;
  }
}

// Solves by elimination, without pivots: the remaining system is positive definite.
void StepCosts::SolveFor(const std::array<bool, kCosts>& left_out) {
  std::array<Costs, kCosts> m = products_;
  costs_ = sums_;
  for (int i = 0; i < kCosts; ++i) {
    m[i][i] *= 1 + kPull;
    if (!left_out[i]) continue;
    for (int j = 0; j < kCosts; ++j) m[i][j] = m[j][i] = i == j ? 1 : 0;
    costs_[i] = 0;
  }
  for (int i = 0; i < kCosts; ++i) {
    for (int below = i + 1; below < kCosts; ++below) {
      const double factor = m[below][i] / m[i][i];
      for (int j = i; j < kCosts; ++j) m[below][j] -= factor * m[i][j];
      costs_[below] -= factor * costs_[i];
    }
  }
  for (int i = kCosts - 1; i >= 0; --i) {
    for (int j = i + 1; j < kCosts; ++j) costs_[i] -= m[i][j] * costs_[j];
    costs_[i] /= m[i][i];
  }
}

double StepCosts::Seconds(int bucket, StepShape shape) const {
  const Costs counts = Counts(bucket, shape);
  return std::inner_product(costs_.begin(), costs_.end(), counts.begin(), 0.0);
}

}  // namespace foredraft
