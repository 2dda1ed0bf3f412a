#include "scheduler/step_estimates.h"

#include <algorithm>
#include <cmath>

namespace foredraft {
namespace {

constexpr int kFirstSteps = 3;         // observations after which a K is known
constexpr double kLevelWeight = 0.2;   // EWMA weight of a step in the level
constexpr double kRatioWeight = 0.15;  // EWMA weight of a step in the ratio of its K
constexpr double kLargestRise = 0.3;   // bound on one increase, log seconds: outliers are always slow steps

constexpr double kDecay = 0.99;    // of the counts, per step
constexpr double kLeastTried = 4;  // tried drafts below which counts do not decay

}  // namespace

void StepTimes::Observe(int draft_len, double seconds, bool is_in_use) {
  if (!(seconds > 0)) return;  // not measured
  if (step_count_ == 0) level_ = std::log(seconds);
  Cell& cell = cells_[draft_len];
  double surprise = std::log(seconds) - level_ - cell.ratio;
  if (cell.count > 0) surprise = std::min(surprise, kLargestRise);
  if (is_in_use && known(draft_len)) {
    level_ += kLevelWeight * surprise;
  } else if (surprise < -kLargestRise) {  // the steps before were outliers
    cell.ratio += surprise;
  } else {
    cell.ratio += std::max(1.0 / (cell.count + 1), kRatioWeight) * surprise;
  }
  ++cell.count;
  cell.last_step = ++step_count_;
}

bool StepTimes::known(int draft_len) const { return cells_[draft_len].count >= kFirstSteps; }

int StepTimes::age(int draft_len) const { return step_count_ - cells_[draft_len].last_step; }

double StepTimes::Estimate(int draft_len) const {
  double ratio = cells_[draft_len].ratio;
  for (size_t k = draft_len + 1; k < cells_.size(); ++k) {
    if (known(static_cast<int>(k))) ratio = std::min(ratio, cells_[k].ratio);
  }
  return std::exp(level_ + ratio);
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
