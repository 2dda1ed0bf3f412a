#include "scheduler/policies/shape_search.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace foredraft {
namespace {

constexpr double kMargin = 0.015;  // relative gain in tokens per second for a change of the shape in use
// Steps per probe. The first is not measured, because it still verifies the drafts of the step before.
constexpr int kProbeSteps = 4;
// Steps between two probes. kFirstProbeGap: while a candidate is unmeasured and after a change. Later the gap
// keeps the time that probes lose at kProbeCost, between kLeastProbeGap and kLargestProbeGap.
constexpr int kFirstProbeGap = 8;
constexpr int kLargestDelay = 24;  // steps by which changes of shape may delay a probe
constexpr int kLeastProbeGap = 40;
constexpr int kLargestProbeGap = 512;
constexpr double kProbeCost = 0.005;      // share of the time that all probes of measured shapes may lose
constexpr double kFirstProbeCost = 0.02;  // share of the bucket's steps that a shape's first probe may lose

constexpr int kOldest = 8192;        // steps after which even the worst shape is measured again
constexpr double kPromising = 0.97;  // share of the rate in use that a shape must promise
// How many measured shapes of one bucket suffice for the costs of a row, a draft and drafting.
constexpr int kTellingShapes = 3, kTellingShapesWithCuts = 4;

// The shapes among which `choice` lets the search choose, in ascending order.
std::vector<StepShape> Candidates(const ShapeChoice& choice) {
  std::vector<StepShape> shapes = StepShape::All(choice.upper);
  if (!choice.cuts) std::erase_if(shapes, [](StepShape shape) { return shape.cuts(); });
  return shapes;
}

// The shapes from which the costs of a block, a draft and a row follow.
std::vector<StepShape> TellingShapes(const ShapeChoice& choice) {
  const int half = (choice.upper + 1) / 2;
  return {{}, StepShape::Of(half), {choice.upper, half}, StepShape::Of(choice.upper)};
}

}  // namespace

ShapeSearch::ShapeSearch(const std::vector<int>& buckets, int max_draft_len, int draft_len,
                         bool drafts_at_once)
    : drafts_at_once_(drafts_at_once), last_shape_(StepShape::Of(draft_len)) {
  for (const int seats : buckets) {
    buckets_.emplace(seats, Bucket{.seats = seats, .times = StepTimes(max_draft_len)});
  }
}

StepShape ShapeSearch::Next(int size, const ShapeChoice& choice) {
  Bucket& bucket = buckets_.at(size);
  if (bucket.is_new) Enter(bucket, choice);
  StepShape& in_use = bucket.in_use;
  if (!choice.cuts) {  // the policy no longer cuts
    in_use = StepShape::Of(in_use.draft_len);
    bucket.probe = StepShape::Of(bucket.probe.draft_len);
  }
  const int draft_len = std::min(in_use.draft_len, choice.upper);
  last_shape_ = in_use = {draft_len, std::min(in_use.verify_len, draft_len)};
  if (!bucket.times.known(in_use)) return in_use;
  ++bucket.steps_since_probe;
  if (bucket.probe_steps_left == 0) Reconsider(bucket, choice);
  last_shape_ = in_use;
  if (bucket.probe_steps_left == 0 && --bucket.steps_to_probe < 0) StartProbe(bucket, choice);
  if (bucket.probe_steps_left == 0) return in_use;
  --bucket.probe_steps_left;
  const int probed = std::min(bucket.probe.draft_len, choice.upper);
  return {probed, std::min(bucket.probe.verify_len, probed)};
}

void ShapeSearch::Observe(int bucket, StepShape shape, double seconds) {
  const int draft_len_before = std::exchange(observed_draft_len_, shape.draft_len);
  if (shape.draft_len != draft_len_before) return;
  buckets_.at(bucket).times.Observe(shape, seconds);
}

void ShapeSearch::Enter(Bucket& bucket, const ShapeChoice& choice) {
  bucket.is_new = false;
  bucket.in_use = last_shape_;
  bucket.steps_to_probe = kFirstProbeGap;
  if (!KnowsCosts(choice)) return;
  const StepCosts costs = CostsNear(bucket);
  const Prospects prospects = {.tokens = choice.tokens,
                               .seconds = [&](StepShape s) { return costs.Seconds(bucket.seats, s); }};
  double best_rate = prospects.Rate(bucket.in_use) * (1 + kMargin);
  for (const StepShape shape : Candidates(choice)) {
    const double rate = prospects.Rate(shape);
    if (rate > best_rate) std::tie(bucket.in_use, best_rate) = std::pair(shape, rate);
  }
}

void ShapeSearch::Reconsider(Bucket& bucket, const ShapeChoice& choice) {
  const Prospects prospects = {.tokens = choice.tokens,
                               .seconds = [&](StepShape s) { return bucket.times.Estimate(s); }};
  double best_rate = prospects.Rate(bucket.in_use) * (1 + kMargin);
  for (const StepShape shape : Candidates(choice)) {
    if (!bucket.times.known(shape)) continue;
    const double rate = prospects.Rate(shape);
    if (rate <= best_rate) continue;
    best_rate = rate;
    bucket.in_use = shape;
    const bool delays = bucket.steps_since_probe < kLargestDelay;
    bucket.steps_to_probe = delays ? kFirstProbeGap : std::min(bucket.steps_to_probe, kFirstProbeGap);
  }
}

// The time that a probe would lose, in steps of the shape in use. A probe's first step verifies the drafts of
// the step before.
double ShapeSearch::Prospects::LostSteps(StepShape probe, StepShape in_use) const {
  const double made = (kProbeSteps - 1) * tokens(probe) + std::min(tokens(probe), tokens(in_use));
  return kProbeSteps * seconds(probe) / seconds(in_use) - made / tokens(in_use);
}

bool ShapeSearch::IsDue(const Bucket& bucket, StepShape shape, const Prospects& prospects, double share) {
  const double lost = prospects.LostSteps(shape, bucket.in_use);
  const int age = bucket.times.age(shape);
  if (!bucket.times.known(shape)) return age >= std::min<double>(lost / kFirstProbeCost, kOldest);
  return age >= std::clamp<double>(lost / share, kLeastProbeGap, kOldest);
}

// K / 2 is a neighbour because a larger difference in K shows the cost of a draft more clearly. Where one
// forward makes all drafts, few drafts may be worse than none and than many, so steps of K - 1 or K + 1 do
// not lead from one to the other. So the far end of the range is probed first, and the less often the more
// its probe costs.
StepShape ShapeSearch::NeighbourToProbe(const Bucket& bucket, const ShapeChoice& choice,
                                        const Prospects& prospects) const {
  const int in_use = bucket.in_use.draft_len;
  const bool knows_costs = KnowsCosts(choice);
  StepShape probe = bucket.in_use;
  const auto consider = [&](int draft_len) {
    const StepShape shape = StepShape::Of(draft_len);
    if (draft_len < 0 || draft_len > choice.upper || draft_len == in_use) return;
    if (knows_costs && !bucket.times.known(shape) && !IsDue(bucket, shape, prospects, kProbeCost)) return;
    if (probe == bucket.in_use || bucket.times.age(shape) > bucket.times.age(probe)) probe = shape;
  };
  if (drafts_at_once_) {
    const int far = in_use == 0 ? choice.upper : 0;
    const bool may_wait = knows_costs || bucket.times.known(StepShape::Of(far));
    if (!may_wait || IsDue(bucket, StepShape::Of(far), prospects, kProbeCost)) consider(far);
  }
  for (const int draft_len : {in_use / 2, in_use + 1, in_use - 1}) consider(draft_len);
  return probe;
}

// A drafter with confidences makes all drafts in one forward, so few drafts may be worse than more and than
// none, and there are too many shapes to try them all. The order of probes: 1. shapes from which the costs
// follow, unless other buckets have them; 2. the predicted best, if it may beat the shape in use; 3. shapes
// whose measurement is old and cheap to repeat.
StepShape ShapeSearch::ShapeToProbe(const Bucket& bucket, const ShapeChoice& choice,
                                    const Prospects& prospects) const {
  const std::vector<StepShape> telling = TellingShapes(choice);
  if (!KnowsCosts(choice)) {
    for (const StepShape shape : telling) {
      if (!bucket.times.known(shape)) return shape;
    }
  }
  StepShape probe = bucket.in_use;
  double best = prospects.Rate(bucket.in_use) * kPromising;
  for (const StepShape shape : Candidates(choice)) {
    const double rate = prospects.Rate(shape);
    if (bucket.times.known(shape) || rate <= best) continue;
    std::tie(probe, best) = std::pair(shape, rate);
  }
  if (probe != bucket.in_use) return probe;
  const double share = kProbeCost / static_cast<double>(telling.size());
  for (const StepShape shape : Candidates(choice)) {
    const bool tells = std::find(telling.begin(), telling.end(), shape) != telling.end();
    if (shape == bucket.in_use || (!tells && !bucket.times.known(shape))) continue;
    if (!IsDue(bucket, shape, prospects, share)) continue;
    if (probe == bucket.in_use || bucket.times.age(shape) > bucket.times.age(probe)) probe = shape;
  }
  return probe;
}

void ShapeSearch::StartProbe(Bucket& bucket, const ShapeChoice& choice) const {
  const StepCosts costs = CostsNear(bucket);
  const double scale = bucket.times.Estimate(bucket.in_use) / costs.Seconds(bucket.seats, bucket.in_use);
  const Prospects prospects = {.tokens = choice.tokens, .seconds = [&](StepShape shape) {
                                 return bucket.times.known(shape)
                                            ? bucket.times.Estimate(shape)
                                            : scale * costs.Seconds(bucket.seats, shape);
                               }};
  const StepShape probe =
      choice.cuts ? ShapeToProbe(bucket, choice, prospects) : NeighbourToProbe(bucket, choice, prospects);
  bucket.steps_to_probe = kFirstProbeGap;
  bucket.steps_since_probe = 0;
  if (probe == bucket.in_use) return;
  bucket.probe = probe;
  bucket.probe_steps_left = kProbeSteps;
  if (!bucket.times.known(probe)) return;
  bucket.steps_to_probe = static_cast<int>(std::clamp<double>(
      prospects.LostSteps(probe, bucket.in_use) / kProbeCost, kLeastProbeGap, kLargestProbeGap));
}

bool ShapeSearch::KnowsCosts(const ShapeChoice& choice) const {
  const int least = choice.cuts ? kTellingShapesWithCuts : kTellingShapes;
  return std::any_of(buckets_.begin(), buckets_.end(),
                     [least](const auto& entry) { return entry.second.times.known_count() >= least; });
}

// Nearer buckets weigh more: they say more about how costs grow there.
StepCosts ShapeSearch::CostsNear(const Bucket& bucket) const {
  StepCosts costs;
  for (const auto& [seats, other] : buckets_) {
    const auto [less, more] = std::minmax(seats, bucket.seats);
    costs.Add(seats, other.times, static_cast<double>(less) / more);
  }
  costs.Solve();
  return costs;
}

}  // namespace foredraft
