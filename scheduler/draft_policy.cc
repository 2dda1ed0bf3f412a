#include "scheduler/draft_policy.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr double kMargin = 0.015;  // relative gain in tokens per second for a change of K
// Steps per probe. One is too few: the first step of a larger K has no more drafts to verify than before.
constexpr int kProbeSteps = 3;
// Steps between two probes. kFirstProbeGap: while a candidate is unmeasured and after a change of K. Later
// the gap keeps the time that probes lose at kProbeCost, between kLeastProbeGap and kLargestProbeGap.
constexpr int kFirstProbeGap = 8;
constexpr int kLargestDelay = 24;  // of a probe by changes of K, or changes in turns would leave no probe
constexpr int kLeastProbeGap = 40;
constexpr int kLargestProbeGap = 512;
constexpr double kProbeCost = 0.005;  // share of the time

constexpr int kOldest = 8192;               // steps after which even the worst shape is measured again
constexpr double kPromising = 0.97;         // of the rate in use: what may be better for all that is known
constexpr double kTokensWeight = 1.0 / 16;  // EWMA weight of a step in a bucket's expected tokens
constexpr int kPublishGap = 32;             // steps between two changes of the device's calibration

}  // namespace

DraftPolicy::DraftPolicy(const std::vector<int>& buckets, int max_draft_len, int draft_len,
                         const DraftPolicyOptions& options, bool drafts_at_once)
    : max_draft_len_(max_draft_len),
      drafts_at_once_(drafts_at_once),
      draft_len_(draft_len),
      options_(options),
      acceptance_(max_draft_len),
      calibration_(max_draft_len),
      published_(max_draft_len),
      last_shape_(StepShape::Of(draft_len)) {
  for (int bucket : buckets) buckets_.emplace(bucket, Bucket{.times = StepTimes(max_draft_len)});
}

void DraftPolicy::Change(int draft_len, const DraftPolicyOptions& options) {
  draft_len_ = draft_len;
  options_ = options;
}

int DraftPolicy::upper() const {
  if (options_.kind != DraftPolicyKind::kSchedule) return draft_len_;
  int largest = 0;
  for (const auto& [bucket, draft_len] : options_.schedule) largest = std::max(largest, draft_len);
  return std::min(largest, draft_len_);
}

StepShape DraftPolicy::ChooseShape(int bucket, const std::vector<int>& live_by_cap,
                                   const StepDrafts& drafts) {
  int largest_cap = static_cast<int>(live_by_cap.size()) - 1;
  while (largest_cap > 0 && live_by_cap[largest_cap] == 0) --largest_cap;
  const StepShape shape = ChooseForPolicy(bucket, std::min(draft_len_, largest_cap), live_by_cap, drafts);
  if (shape.draft_len > 0) drafted_ = {.bucket = bucket, .shape = shape, .live_by_cap = live_by_cap};
  return shape;
}

StepShape DraftPolicy::ChooseForPolicy(int bucket, int upper, const std::vector<int>& live_by_cap,
                                       const StepDrafts& drafts) {
  switch (options_.kind) {
    case DraftPolicyKind::kFixed:
      return StepShape::Of(upper);
    case DraftPolicyKind::kSchedule:
      return StepShape::Of(std::min(upper, Scheduled(bucket)));
    case DraftPolicyKind::kAdaptive: {
      Bucket& of_bucket = buckets_.at(bucket);
      return Adapt(&of_bucket, upper, RateIn(of_bucket, live_by_cap));
    }
    case DraftPolicyKind::kConfidence:
      return ChooseByConfidence(bucket, upper, drafts);
  }
  CHECK(false) << "draft policy " << static_cast<int>(options_.kind);
}

int DraftPolicy::Scheduled(int bucket) const {
  auto entry = options_.schedule.lower_bound(bucket);
  return entry == options_.schedule.end() ? 0 : entry->second;
}

// K changes slowly, as a step's drafts are verified in the next one; v with every step whose drafts are
// known.
StepShape DraftPolicy::ChooseByConfidence(int bucket, int upper, const StepDrafts& drafts) {
  Bucket& of_bucket = buckets_.at(bucket);
  const std::vector<double> tokens = TokensByShape(drafts, calibration_, bucket, max_draft_len_);
  ExpectTokens(&of_bucket, tokens, std::max(1, drafts.live_count()));
  const StepShape slow = Adapt(&of_bucket, upper, RateIn(of_bucket, {}));
  if (!drafts.fresh || slow != of_bucket.in_use) return slow;
  StepShape best = slow;
  double best_rate = 0;
  for (int verify_len = 1; verify_len <= slow.draft_len; ++verify_len) {
    const StepShape shape = {slow.draft_len, verify_len};
    if (!of_bucket.times.known(shape)) continue;
    const double rate = tokens[shape.index()] / of_bucket.times.Estimate(shape);
    if (rate > best_rate) std::tie(best, best_rate) = std::pair(shape, rate);
  }
  return best;
}

void DraftPolicy::ExpectTokens(Bucket* bucket, const std::vector<double>& tokens, int live_count) {
  if (bucket->tokens.empty()) {
    for (const double sum : tokens) bucket->tokens.push_back(sum / live_count);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    bucket->tokens[i] += kTokensWeight * (tokens[i] / live_count - bucket->tokens[i]);
  }
}

void DraftPolicy::Observe(const StepObservation& step) {
  acceptance_.Observe(step.tried, step.accepted);
  for (const StepObservation::Event& event : step.events) {
    calibration_.Observe(event.k, event.confidence, event.accepted);
  }
  if (--steps_to_publish_ < 0) {
    published_ = calibration_.scales();
    steps_to_publish_ = kPublishGap;
  }
  Bucket& bucket = buckets_.at(step.bucket);
  const bool measures =
      options_.kind == DraftPolicyKind::kAdaptive || options_.kind == DraftPolicyKind::kConfidence;
  const StepShape in_use = measures ? bucket.in_use : StepShape::Of(draft_len_);
  const StepShape shape = {step.draft_len, step.draft_len - step.cut_len};
  bucket.times.Observe(shape, step.seconds, /*is_in_use=*/shape == in_use);
}

void DraftPolicy::Expect(std::span<const float> confidences) {
  double reached = 1;
  for (size_t i = 0; i < confidences.size(); ++i) {
    const int k = static_cast<int>(i) + 1;
    calibration_.Expect(k, confidences[i], reached);
    reached *= calibration_.Chance(k, confidences[i]);
  }
}

double DraftPolicy::SpeedUp() const {
  if (drafted_.bucket < 0) return 0;
  const Bucket& bucket = buckets_.at(drafted_.bucket);
  if (!bucket.times.known({}) || !bucket.times.known(drafted_.shape)) return 0;
  const Rate rate = RateIn(bucket, drafted_.live_by_cap);
  return rate(drafted_.shape) / rate({});
}

DraftPolicy::Rate DraftPolicy::RateIn(const Bucket& bucket, const std::vector<int>& live_by_cap) const {
  if (reads_confidences() && !bucket.tokens.empty()) {
    return [&bucket](StepShape shape) { return bucket.tokens[shape.index()] / bucket.times.Estimate(shape); };
  }
  return [this, &bucket, &live_by_cap](StepShape shape) {
    return TokensPerStep(shape.draft_len, live_by_cap) / bucket.times.Estimate(shape);
  };
}

// Expected tokens of a step with a row for each of K drafts.
double DraftPolicy::TokensPerStep(int draft_len, const std::vector<int>& live_by_cap) const {
  double tokens = 0;
  double reached = 1;  // chance that all drafts so far are accepted
  double per_sequence = 1;
  for (int cap = 0; cap < static_cast<int>(live_by_cap.size()); ++cap) {
    if (cap > 0 && cap <= draft_len) {
      reached *= acceptance_.at(cap);
      per_sequence += reached;
    }
    tokens += live_by_cap[cap] * per_sequence;
  }
  return tokens;
}

StepShape DraftPolicy::Adapt(Bucket* bucket, int upper, const Rate& rate) {
  if (bucket->is_new) {
    bucket->is_new = false;
    bucket->in_use = last_shape_;
    bucket->steps_to_probe = kFirstProbeGap;
  }
  StepShape& in_use = bucket->in_use;
  if (!reads_confidences()) {  // any more
    in_use = StepShape::Of(in_use.draft_len);
    bucket->probe = StepShape::Of(bucket->probe.draft_len);
  }
  const int draft_len = std::min(in_use.draft_len, upper);
  last_shape_ = in_use = {draft_len, std::min(in_use.verify_len, draft_len)};
  if (!bucket->times.known(in_use)) return in_use;
  ++bucket->steps_since_probe;
  if (bucket->probe_steps_left == 0) Reconsider(bucket, upper, rate);
  if (bucket->probe_steps_left == 0 && --bucket->steps_to_probe < 0) StartProbe(bucket, upper, rate);
  if (bucket->probe_steps_left == 0) return in_use;
  --bucket->probe_steps_left;
  const int probed = std::min(bucket->probe.draft_len, upper);
  return {probed, std::min(bucket->probe.verify_len, probed)};
}

// In ascending order.
std::vector<StepShape> DraftPolicy::Candidates(int upper) const {
  std::vector<StepShape> shapes = StepShape::All(upper);
  if (!reads_confidences()) std::erase_if(shapes, [](StepShape shape) { return shape.cuts(); });
  return shapes;
}

void DraftPolicy::Reconsider(Bucket* bucket, int upper, const Rate& rate) {
  double best_rate = rate(bucket->in_use) * (1 + kMargin);
  for (const StepShape shape : Candidates(upper)) {
    if (!bucket->times.known(shape)) continue;
    const double of_shape = rate(shape);
    if (of_shape <= best_rate) continue;
    best_rate = of_shape;
    last_shape_ = bucket->in_use = shape;
    const bool delays = bucket->steps_since_probe < kLargestDelay;
    bucket->steps_to_probe = delays ? kFirstProbeGap : std::min(bucket->steps_to_probe, kFirstProbeGap);
  }
}

// K / 2 is a neighbour because a larger difference in K shows the cost of a draft more clearly. Where all
// drafts are made in one forward, few may be worse than none and than many: the way between these two does
// not lead over K - 1 and K + 1. So the other end is probed first, and again as seldom as it costs.
StepShape DraftPolicy::NeighbourToProbe(const Bucket& bucket, int upper, const Rate& rate) const {
  const int in_use = bucket.in_use.draft_len;
  StepShape probe = bucket.in_use;
  const auto consider = [&](int draft_len) {
    const StepShape shape = StepShape::Of(draft_len);
    if (draft_len < 0 || draft_len > upper || draft_len == in_use) return;
    if (probe == bucket.in_use || bucket.times.age(shape) > bucket.times.age(probe)) probe = shape;
  };
  if (drafts_at_once_) {
    const StepShape far = StepShape::Of(in_use == 0 ? upper : 0);
    const bool known = bucket.times.known(far);
    const double loss = known ? rate(bucket.in_use) / rate(far) - 1 : 0;
    if (bucket.times.age(far) >= ProbeGap(loss, kOldest)) consider(far.draft_len);
  }
  for (const int draft_len : {in_use / 2, in_use + 1, in_use - 1}) consider(draft_len);
  return probe;
}

// A drafter with confidences makes all drafts in one forward, so few drafts may be worse than more and than
// none, and there are too many shapes to try them all. First those from which the costs of a block, a draft
// and a row follow; then the one that these costs make the best, if it may be better than the one in use;
// then, again, whatever was measured so long ago that probing it costs little.
StepShape DraftPolicy::ShapeToProbe(const Bucket& bucket, int upper, const Rate& rate) const {
  const StepShape in_use = bucket.in_use;
  const int half = (upper + 1) / 2;
  for (const StepShape shape :
       {StepShape{}, StepShape::Of(half), StepShape{upper, half}, StepShape::Of(upper)}) {
    if (!bucket.times.known(shape)) return shape;
  }
  StepShape probe = in_use;
  double best = rate(in_use) * kPromising;
  for (const StepShape shape : Candidates(upper)) {
    if (bucket.times.known(shape)) continue;
    const double predicted = bucket.tokens[shape.index()] / bucket.times.Predict(shape);
    if (predicted > best) std::tie(probe, best) = std::pair(shape, predicted);
  }
  if (probe != in_use) return probe;
  for (const StepShape shape : Candidates(upper)) {
    if (shape == in_use || !bucket.times.known(shape)) continue;
    const int age = bucket.times.age(shape);
    if (age < ProbeGap(rate(in_use) / rate(shape) - 1, kOldest)) continue;
    if (probe == in_use || age > bucket.times.age(probe)) probe = shape;
  }
  return probe;
}

// Steps after which a probe that loses so much of its time has cost no more than its share.
int DraftPolicy::ProbeGap(double loss, int largest) {
  const double paid_back = kProbeSteps * loss / kProbeCost;
  return static_cast<int>(std::clamp<double>(paid_back, kLeastProbeGap, largest));
}

void DraftPolicy::StartProbe(Bucket* bucket, int upper, const Rate& rate) {
  const StepShape in_use = bucket->in_use;
  const StepShape probe =
      reads_confidences() ? ShapeToProbe(*bucket, upper, rate) : NeighbourToProbe(*bucket, upper, rate);
  bucket->steps_to_probe = kFirstProbeGap;
  bucket->steps_since_probe = 0;
  if (probe == in_use) return;
  bucket->probe = probe;
  bucket->probe_steps_left = kProbeSteps;
  if (!bucket->times.known(probe)) return;
  bucket->steps_to_probe = ProbeGap(rate(in_use) / rate(probe) - 1, kLargestProbeGap);
}

}  // namespace foredraft
