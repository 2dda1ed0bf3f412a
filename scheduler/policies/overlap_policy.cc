#include "scheduler/policies/overlap_policy.h"

#include <algorithm>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr int kSegments = 4;  // of a trial: on, off, on, off, or the reverse
constexpr int kSegmentIterations = 10;
constexpr int kSettling = 2;        // first iterations of a segment, which the switch disturbs
constexpr int kLeastInterval = 64;  // iterations between two trials
constexpr int kLargestInterval = 4096;
constexpr double kGainWeight = 0.5;         // EWMA weight of a trial
constexpr double kEndedWeight = 1.0 / 256;  // EWMA weight of an iteration in ended_share_

double Median(std::vector<double> values) {
  CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void OverlapPolicy::Record(const Iteration& iteration) {
  ended_share_ +=
      kEndedWeight * (static_cast<double>(iteration.ended_slots) / iteration.live_slots - ended_share_);
  if (in_trial_) return RecordInTrial(iteration);
  Estimate& estimate = EstimateOf(iteration.decode_bucket);
  overlaps_ = estimate.gain >= 0;
  if (++estimate.since_trial >= estimate.interval) StartTrial(iteration);
}

void OverlapPolicy::StartTrial(const Iteration& iteration) {
  in_trial_ = true;
  trial_ = {.decode_bucket = iteration.decode_bucket,
            .draft_len = iteration.draft_len,
            .first_overlaps = overlaps_};
}

void OverlapPolicy::RecordInTrial(const Iteration& iteration) {
  if (iteration.decode_bucket != trial_.decode_bucket || iteration.draft_len != trial_.draft_len) {
    // Times of different steps say nothing about overlap: another trial comes later.
    in_trial_ = false;
    Estimate& estimate = EstimateOf(trial_.decode_bucket);
    estimate.since_trial = estimate.interval / 2;
    overlaps_ = EstimateOf(iteration.decode_bucket).gain >= 0;
    return;
  }
  if (trial_.iteration % kSegmentIterations >= kSettling)
    trial_.seconds[overlaps_].push_back(iteration.seconds);
  const int segment = ++trial_.iteration / kSegmentIterations;
  if (segment == kSegments) return EndTrial();
  overlaps_ = (segment % 2 == 0) == trial_.first_overlaps;
}

void OverlapPolicy::EndTrial() {
  in_trial_ = false;
  Estimate& estimate = EstimateOf(trial_.decode_bucket);
  const double gain = Median(trial_.seconds[0]) / Median(trial_.seconds[1]) - 1 - ended_share_;
  const bool agrees = estimate.measured && (gain >= 0) == (estimate.gain >= 0);
  estimate.interval = agrees ? std::min(2 * estimate.interval, kLargestInterval) : kLeastInterval;
  estimate.gain = estimate.measured ? estimate.gain + kGainWeight * (gain - estimate.gain) : gain;
  estimate.measured = true;
  estimate.since_trial = 0;
  overlaps_ = estimate.gain >= 0;
}

OverlapPolicy::Estimate& OverlapPolicy::EstimateOf(int decode_bucket) {
  return estimates_.try_emplace(decode_bucket, Estimate{.interval = kLeastInterval}).first->second;
}

}  // namespace foredraft
