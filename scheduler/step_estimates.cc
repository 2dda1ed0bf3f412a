#include "scheduler/step_estimates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace foredraft {
namespace {

constexpr int kFirstSteps = 3;         // observations after which a K is known
constexpr double kLevelWeight = 0.2;   // EWMA weight of a step in the level
constexpr double kRatioWeight = 0.15;  // EWMA weight of a step in the ratio of its K
constexpr double kLargestRise = 0.3;   // bound on one increase, log seconds: outliers are always slow steps

constexpr double kPull = 1e-3;             // on the costs that Predict fits, against 1 for a measured time
constexpr double kLeastPrediction = 0.01;  // of the level

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

void StepTimes::Observe(StepShape shape, double seconds, bool is_in_use) {
  if (!(seconds > 0)) return;  // not measured
  if (step_count_ == 0) level_ = std::log(seconds);
  Cell& cell = cells_[shape.index()];
  double surprise = std::log(seconds) - level_ - cell.ratio;
  if (cell.count > 0) surprise = std::min(surprise, kLargestRise);
  if (is_in_use && known(shape)) {
    level_ += kLevelWeight * surprise;
  } else if (surprise < -kLargestRise) {  // the steps before were outliers
    cell.ratio += surprise;
  } else {
    cell.ratio += std::max(1.0 / (cell.count + 1), kRatioWeight) * surprise;
  }
  ++cell.count;
  cell.last_step = ++step_count_;
}

bool StepTimes::known(StepShape shape) const { return cells_[shape.index()].count >= kFirstSteps; }

int StepTimes::age(StepShape shape) const { return step_count_ - cells_[shape.index()].last_step; }

double StepTimes::Estimate(StepShape shape) const {
  double ratio = cells_[shape.index()].ratio;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const StepShape& other = shapes_[i];
    if (other.draft_len < shape.draft_len || other.verify_len < shape.verify_len) continue;
    if (known(other)) ratio = std::min(ratio, cells_[i].ratio);
  }
  return std::exp(level_ + ratio);
}

int StepTimes::known_count() const {
  return static_cast<int>(
      std::count_if(shapes_.begin(), shapes_.end(), [this](StepShape s) { return known(s); }));
}

double StepTimes::Predict(StepShape shape) const {
  using Features = std::array<double, 4>;
  const auto features = [](StepShape s) {
    return Features{1, s.draft_len > 0 ? 1.0 : 0.0, double(s.draft_len), double(s.verify_len)};
  };
  // The normal equations, with the right side as the last column.
  std::array<std::array<double, 5>, 4> m{};
  for (int i = 0; i < 4; ++i) m[i][i] = i == 0 ? 1e-9 : kPull;
  for (size_t cell = 0; cell < shapes_.size(); ++cell) {
    if (!known(shapes_[cell])) continue;
    const Features x = features(shapes_[cell]);
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) m[i][j] += x[i] * x[j];
      m[i][4] += x[i] * std::exp(cells_[cell].ratio);
    }
  }
  // Positive definite: elimination needs no pivots.
  for (int i = 0; i < 4; ++i) {
    for (int below = i + 1; below < 4; ++below) {
      const double factor = m[below][i] / m[i][i];
      for (int j = i; j < 5; ++j) m[below][j] -= factor * m[i][j];
    }
  }
  Features weights{};
  for (int i = 3; i >= 0; --i) {
    weights[i] = m[i][4];
    for (int j = i + 1; j < 4; ++j) weights[i] -= m[i][j] * weights[j];
    weights[i] /= m[i][i];
  }
  const Features x = features(shape);
  const double time = std::inner_product(x.begin(), x.end(), weights.begin(), 0.0);
  return std::exp(level_) * std::max(time, kLeastPrediction);
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
