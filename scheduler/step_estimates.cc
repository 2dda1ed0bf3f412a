#include "scheduler/step_estimates.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/check.h"

namespace foredraft {
namespace {

// Step times.
constexpr double kMaxWeight = 50;        // a well known cell moves by a fiftieth of what surprises it
constexpr double kAgeing = 0.98;         // of a cell's weight, per step of its bucket that does not show it
constexpr double kLevelGain = 0.2;       // how fast the level follows what the cell does not take on itself
constexpr double kFirstLevelGain = 0.5;  // the same while one cell is known
constexpr double kLargestRise = 0.3;     // of an estimate at once: a hiccup must not unsettle it,
constexpr double kLargestFall = 0.7;     // and can only make a step longer
constexpr double kNoise = 0.2;           // a rise larger than this is left aside once: it may be a hiccup
constexpr double kGuessedSlope = 0.08;   // cost of one more draft while nothing is known at all
constexpr double kLeastShare = 0.2;      // of the nearest cell's time, where a line drawn from noise falls
constexpr double kLeastSlope = 0.005;    // no draft is free: among equals the smaller K

// Acceptance.
constexpr double kWindow = 100;       // drafts of one position that count
constexpr double kWindowSteps = 16;   // and at least so many steps of a large group
constexpr double kForgetting = 0.99;  // per step in which a position was not tried
constexpr double kLeastTried = 4;     // what is never quite forgotten

}  // namespace

int StepTimes::CountKnown(const Bucket& bucket) {
  return static_cast<int>(std::count_if(bucket.cells.begin(), bucket.cells.end(),
                                        [](const Cell& cell) { return cell.weight > 0; }));
}

StepTimes::StepTimes(const std::vector<int>& buckets, int max_draft_len) {
  for (int size : buckets) buckets_.push_back({.size = size, .cells = std::vector<Cell>(max_draft_len + 1)});
}

int StepTimes::IndexOf(int bucket) const {
  auto found = std::lower_bound(buckets_.begin(), buckets_.end(), bucket,
                                [](const Bucket& entry, int size) { return entry.size < size; });
  CHECK(found != buckets_.end() && found->size == bucket) << "no decode bucket " << bucket;
  return static_cast<int>(found - buckets_.begin());
}

void StepTimes::Observe(int bucket, int draft_len, double seconds) {
  if (!(seconds > 0)) return;  // a rank that does not measure
  Bucket& b = buckets_[IndexOf(bucket)];
  Cell& cell = b.cells[draft_len];
  if (b.step_count == 0) b.level = std::log(seconds / Estimate(bucket, draft_len));
  const double estimate = std::log(Estimate(bucket, draft_len));
  const double surprise = std::clamp(std::log(seconds) - estimate, -kLargestFall, kLargestRise);
  ++b.step_count;
  cell.doubted = surprise > kNoise && !cell.doubted;
  if (cell.doubted) return;  // a hiccup, unless it happens again
  const int known_count = CountKnown(b);
  for (Cell& other : b.cells) {
    if (&other != &cell && other.weight > 0) other.weight = std::max(1.0, other.weight * kAgeing);
  }
  if (cell.weight == 0) {
    cell.shape = estimate + surprise - b.level;
  } else if (known_count == 1) {  // nothing to compare with: what the first step left is soon forgotten
    b.level += kFirstLevelGain * std::min(std::log(seconds) - estimate, kLargestRise);
  } else {
    const double own_share = 1 / (cell.weight + 1);
    cell.shape += own_share * surprise;
    b.level += (1 - own_share) * kLevelGain * surprise;
  }
  cell.weight = std::min(cell.weight + 1, kMaxWeight);
  cell.last_step = b.step_count;
}

bool StepTimes::known(int bucket, int draft_len) const {
  return buckets_[IndexOf(bucket)].cells[draft_len].weight > 0;
}

int StepTimes::age(int bucket, int draft_len) const {
  const Bucket& b = buckets_[IndexOf(bucket)];
  return b.cells[draft_len].weight > 0 ? b.step_count - b.cells[draft_len].last_step : 1 << 30;
}

// Of a bucket with at least two known cells: known, or from the nearest one along the line that fits them
// all.
double StepTimes::ShapeOf(const Bucket& bucket, int draft_len) const {
  if (bucket.cells[draft_len].weight > 0) return bucket.cells[draft_len].shape;
  const int count = static_cast<int>(bucket.cells.size());
  int nearest = -1;
  double weights = 0, mean_k = 0, mean_time = 0;
  for (int k = 0; k < count; ++k) {
    const Cell& cell = bucket.cells[k];
    if (cell.weight == 0) continue;
    if (nearest < 0 || std::abs(k - draft_len) < std::abs(nearest - draft_len)) nearest = k;
    weights += cell.weight;
    mean_k += cell.weight * k;
    mean_time += cell.weight * std::exp(cell.shape);
  }
  mean_k /= weights;
  mean_time /= weights;
  double rise = 0, spread = 0;
  for (int k = 0; k < count; ++k) {
    const Cell& cell = bucket.cells[k];
    rise += cell.weight * (k - mean_k) * (std::exp(cell.shape) - mean_time);
    spread += cell.weight * (k - mean_k) * (k - mean_k);
  }
  const double from = std::exp(bucket.cells[nearest].shape);
  const double slope = std::max(rise / spread, kLeastSlope * from);
  return std::log(std::max(from + slope * (draft_len - nearest), kLeastShare * from));
}

// Ties go to the larger bucket, where drafts cost more.
const StepTimes::Bucket* StepTimes::NearestWithShape(int index) const {
  const int count = static_cast<int>(buckets_.size());
  for (int distance = 0; distance < count; ++distance) {
    for (int near : {index + distance, index - distance}) {
      if (near >= 0 && near < count && CountKnown(buckets_[near]) >= 2) return &buckets_[near];
    }
  }
  return nullptr;
}

double StepTimes::Estimate(int bucket, int draft_len) const {
  const int index = IndexOf(bucket);
  const Bucket& b = buckets_[index];
  const Bucket* shaped = NearestWithShape(index);
  auto shape = [&](int k) {
    return shaped == nullptr ? std::log(1 + kGuessedSlope * k) : ShapeOf(*shaped, k);
  };
  if (shaped == &b) return std::exp(b.level + shape(draft_len));
  for (int k = 0; k < static_cast<int>(b.cells.size()); ++k) {
    if (b.cells[k].weight > 0) return std::exp(b.level + b.cells[k].shape + shape(draft_len) - shape(k));
  }
  return std::exp(b.level + shape(draft_len));
}

AcceptanceCurve::AcceptanceCurve(int max_draft_len) : positions_(max_draft_len) {}

void AcceptanceCurve::Observe(const std::vector<int>& tried, const std::vector<int>& accepted) {
  for (size_t i = 0; i < positions_.size(); ++i) {
    Position& position = positions_[i];
    double kept = std::exp(-tried[i] / std::max(kWindow, kWindowSteps * tried[i]));
    if (tried[i] == 0) kept = std::min(1.0, std::max(kForgetting, kLeastTried / position.tried));
    position.tried = position.tried * kept + tried[i];
    position.accepted = position.accepted * kept + accepted[i];
  }
}

double AcceptanceCurve::at(int position) const {
  return positions_[position - 1].accepted / positions_[position - 1].tried;
}

}  // namespace foredraft
