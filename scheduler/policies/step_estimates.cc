#include "scheduler/policies/step_estimates.h"

#include <algorithm>
#include <cmath>

namespace foredraft {
namespace {

constexpr int kFirstSteps = 3;          // observations after which a shape is known
constexpr double kLargestRise = 0.3;    // bound on one increase, log seconds: outliers are always slow steps
constexpr double kNoise = 0.004;        // variance of a measured time, log seconds: 6%
constexpr double kCommonChange = 2e-4;  // variance that a step adds: common to all shapes,
constexpr double kOwnChange = 1e-6;     // and of each
constexpr double kUnknown = 1;          // variance before the first observation
constexpr double kJump = 3;             // standard deviations that noise and changes do not reach
constexpr int kFewSteps = 12;           // a jump after fewer steps means that those were outliers

constexpr double kDecay = 0.99;    // of the counts, per step
constexpr double kLeastTried = 4;  // tried drafts below which counts do not decay

}  // namespace

std::vector<StepShape> StepShape::All(int max_draft_len) {
  std::vector<StepShape> shapes = {{}};
  for (int draft_len = 1; draft_len <= max_draft_len; ++draft_len) {
    for (int verify_len = 1; verify_len <= draft_len; ++verify_len) shapes.push_back({draft_len, verify_len});
  }
  return shapes;
}

StepTimes::StepTimes(int max_draft_len)
    : shapes_(StepShape::All(max_draft_len)),
      cells_(shapes_.size()),
      covariance_(shapes_.size(), std::vector<double>(shapes_.size())) {
  for (size_t i = 0; i < shapes_.size(); ++i) covariance_[i][i] = kUnknown;
}

void StepTimes::Observe(StepShape shape, double seconds) {
  if (!(seconds > 0)) return;  // not measured
  if (step_count_ == 0) {
    for (Cell& cell : cells_) cell.log_seconds = std::log(seconds);
  }
  const int observed = shape.index();
  Cell& cell = cells_[observed];
  double surprise = std::log(seconds) - cell.log_seconds;
  if (cell.count > 0) surprise = std::min(surprise, kLargestRise);
  Widen(kCommonChange, kOwnChange);
  if (std::abs(surprise) > kJump * std::sqrt(covariance_[observed][observed] + kNoise)) {
    const double jump = surprise * surprise;
    if (cell.count < kFewSteps) covariance_[observed][observed] += jump;
    if (cell.count >= kFewSteps) Widen(jump, 0);
  }
  const std::vector<double> with_observed = covariance_[observed];
  const double variance = with_observed[observed] + kNoise;
  for (size_t i = 0; i < cells_.size(); ++i) {
    const double gain = with_observed[i] / variance;
    cells_[i].log_seconds += gain * surprise;
    for (size_t j = 0; j < cells_.size(); ++j) covariance_[i][j] -= gain * with_observed[j];
  }
  ++cell.count;
  cell.last_step = ++step_count_;
}

void StepTimes::Widen(double common, double own) {
  for (size_t i = 0; i < cells_.size(); ++i) {
    for (double& each : covariance_[i]) each += common;
    covariance_[i][i] += own;
  }
}

bool StepTimes::known(StepShape shape) const { return cells_[shape.index()].count >= kFirstSteps; }

int StepTimes::age(StepShape shape) const { return step_count_ - cells_[shape.index()].last_step; }

double StepTimes::Measured(StepShape shape) const { return std::exp(cells_[shape.index()].log_seconds); }

double StepTimes::Estimate(StepShape shape) const {
  double least = cells_[shape.index()].log_seconds;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const StepShape& other = shapes_[i];
    if (other.draft_len < shape.draft_len || other.verify_len < shape.verify_len) continue;
    if (known(other)) least = std::min(least, cells_[i].log_seconds);
  }
  return std::exp(least);
}

int StepTimes::known_count() const {
  return static_cast<int>(
      std::count_if(shapes_.begin(), shapes_.end(), [this](StepShape s) { return known(s); }));
}

void AcceptanceCurve::Observe(const std::vector<int>& tried, const std::vector<int>& accepted) {
  for (size_t i = 0; i < positions_.size(); ++i) {
    Position& position = positions_[i];
    const double kept = std::min(1.0, std::max(kDecay, kLeastTried / position.tried));
    position.tried = position.tried * kept + tried[i];
    position.accepted = position.accepted * kept + accepted[i];
  }
}

double AcceptanceCurve::at(int position) const {
  return positions_[position - 1].accepted / positions_[position - 1].tried;
}

}  // namespace foredraft
