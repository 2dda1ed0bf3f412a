#include "scheduler/step_estimates.h"

#include <algorithm>
#include <cmath>

namespace foredraft {
namespace {

constexpr int kFirstSteps = 3;         // observations after which a shape is known
constexpr double kLevelWeight = 0.2;   // EWMA weight of a step in the level
constexpr double kRatioWeight = 0.15;  // EWMA weight of a step in the ratio of its K
constexpr double kLargestRise = 0.3;   // bound on one increase, log seconds: outliers are always slow steps

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

double StepTimes::Measured(StepShape shape) const { return std::exp(level_ + cells_[shape.index()].ratio); }

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
