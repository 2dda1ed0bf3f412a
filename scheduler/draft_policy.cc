#include "scheduler/draft_policy.h"

#include <algorithm>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr double kMargin = 0.02;  // by which another K must be better
constexpr int kDwellSteps = 8;    // between two switches within a bucket

// Steps between two probes of a bucket: short while its neighbours are unknown, doubling up to kProbeGap; but
// so long that probes cost no more than kProbeCost of the time, where that is not longer than
// kLargestProbeGap.
constexpr int kFirstProbeGap = 4;
constexpr int kProbeGap = 64;
constexpr int kLargestProbeGap = 1024;
constexpr double kProbeCost = 0.005;

constexpr int kProbeStepsUp = 3;  // the first of them verifies no more than before
constexpr int kProbeStepsDown = 2;

}  // namespace

DraftPolicy::DraftPolicy(const std::vector<int>& buckets, int max_draft_len, int draft_len,
                         const DraftPolicyOptions& options)
    : draft_len_(draft_len),
      options_(options),
      times_(buckets, max_draft_len),
      acceptance_(max_draft_len),
      current_(draft_len) {}

void DraftPolicy::Change(int draft_len, const DraftPolicyOptions& options) {
  const bool was_adaptive = options_.kind == DraftPolicyKind::kAdaptive;
  draft_len_ = draft_len;
  options_ = options;
  current_ = was_adaptive ? std::min(current_, draft_len) : draft_len;
  probe_steps_left_ = 0;
}

int DraftPolicy::upper() const {
  if (options_.kind != DraftPolicyKind::kSchedule) return draft_len_;
  int most = 0;
  for (const auto& [bucket, draft_len] : options_.schedule) most = std::max(most, draft_len);
  return std::min(most, draft_len_);
}

int DraftPolicy::Choose(int bucket, const std::vector<int>& live_by_cap) {
  int largest_cap = static_cast<int>(live_by_cap.size()) - 1;
  while (largest_cap > 0 && live_by_cap[largest_cap] == 0) --largest_cap;
  return std::min(ChooseByPolicy(bucket, live_by_cap), largest_cap);
}

int DraftPolicy::ChooseByPolicy(int bucket, const std::vector<int>& live_by_cap) {
  switch (options_.kind) {
    case DraftPolicyKind::kFixed:
      return draft_len_;
    case DraftPolicyKind::kSchedule:
      return Scheduled(bucket);
    case DraftPolicyKind::kAdaptive:
      return Adapt(bucket, live_by_cap);
  }
  CHECK(false) << "draft policy " << static_cast<int>(options_.kind);
}

int DraftPolicy::Scheduled(int bucket) const {
  auto entry = options_.schedule.lower_bound(bucket);
  return entry == options_.schedule.end() ? 0 : std::min(entry->second, draft_len_);
}

void DraftPolicy::Observe(const StepObservation& step) {
  times_.Observe(step.bucket, step.draft_len, step.seconds);
  acceptance_.Observe(step.tried, step.accepted);
}

// Expected tokens per second of steps with this K, in comparison with other K of the bucket.
double DraftPolicy::Rate(int bucket, int draft_len, const std::vector<int>& live_by_cap) const {
  double tokens = 0;
  double reached = 1;  // chance that all drafts before position i + 1 are accepted
  double per_sequence = 1;
  for (int cap = 0; cap < static_cast<int>(live_by_cap.size()); ++cap) {
    if (cap > 0 && cap <= draft_len) {
      reached *= acceptance_.at(cap);
      per_sequence += reached;
    }
    tokens += live_by_cap[cap] * per_sequence;
  }
  return tokens / times_.Estimate(bucket, draft_len);
}

int DraftPolicy::Adapt(int bucket, const std::vector<int>& live_by_cap) {
  const bool moved = bucket != last_bucket_;
  last_bucket_ = bucket;
  Probing& probing = probing_[bucket];
  if (probing.gap == 0) probing.next = probing.gap = kFirstProbeGap;
  ++probing.step_count;
  if (moved) probe_steps_left_ = 0;
  if (probe_steps_left_ > 0) {
    --probe_steps_left_;
    return probe_draft_len_;
  }
  ++steps_since_switch_;
  if (moved || steps_since_switch_ >= kDwellSteps) Reconsider(bucket, live_by_cap);
  if (probing.step_count >= probing.next && draft_len_ > 0) {
    StartProbe(bucket);
    const double loss = Rate(bucket, current_, live_by_cap) / Rate(bucket, probe_draft_len_, live_by_cap) - 1;
    const double paid_back = (probe_steps_left_ + 1) * loss / kProbeCost;
    probing.gap = std::min(2 * probing.gap, kProbeGap);
    probing.next =
        probing.step_count + static_cast<int>(std::clamp<double>(paid_back, probing.gap, kLargestProbeGap));
    return probe_draft_len_;
  }
  return current_;
}

// In a new bucket K may fall at once; rises wait, lest a load between two buckets drafts for nothing.
void DraftPolicy::Reconsider(int bucket, const std::vector<int>& live_by_cap) {
  const int most = steps_since_switch_ >= kDwellSteps ? draft_len_ : current_;
  int best = current_;
  double best_rate = Rate(bucket, current_, live_by_cap) * (1 + kMargin);
  for (int draft_len = 0; draft_len <= most; ++draft_len) {
    const double rate = Rate(bucket, draft_len, live_by_cap);
    if (rate <= best_rate) continue;
    best = draft_len;
    best_rate = rate;
  }
  if (best == current_) return;
  current_ = best;
  steps_since_switch_ = 0;
  if (Unmeasured(bucket, best - 1) || Unmeasured(bucket, best + 1)) {
    Probing& probing = probing_[bucket];
    probing.gap = kFirstProbeGap;
    probing.next = probing.step_count + kFirstProbeGap;
  }
}

bool DraftPolicy::Unmeasured(int bucket, int draft_len) const {
  return draft_len >= 0 && draft_len <= draft_len_ && !times_.known(bucket, draft_len);
}

// A neighbour, or half of K, which shows the cost of a draft more clearly: the one seen longest ago.
void DraftPolicy::StartProbe(int bucket) {
  probe_draft_len_ = current_;
  int oldest = -1;
  for (int draft_len : {current_ / 2, current_ + 1, current_ - 1}) {
    if (draft_len < 0 || draft_len > draft_len_ || draft_len == current_) continue;
    if (times_.age(bucket, draft_len) <= oldest) continue;
    oldest = times_.age(bucket, draft_len);
    probe_draft_len_ = draft_len;
  }
  probe_steps_left_ = (probe_draft_len_ > current_ ? kProbeStepsUp : kProbeStepsDown) - 1;
}

}  // namespace foredraft
