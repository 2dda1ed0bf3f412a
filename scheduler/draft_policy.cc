#include "scheduler/draft_policy.h"

#include <algorithm>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr double kMargin = 0.015;  // relative gain in tokens per second for a change of K
// Steps per probe. One is too few: the first step of a larger K has no more drafts to verify than before.
constexpr int kProbeSteps = 3;
// Steps between two probes. kFirstProbeGap: while a candidate is unmeasured and after a change of K. Later
// the gap keeps the time that probes lose at kProbeCost, between kLeastProbeGap and kLargestProbeGap.
constexpr int kFirstProbeGap = 8;
constexpr int kLeastProbeGap = 40;
constexpr int kLargestProbeGap = 512;
constexpr double kProbeCost = 0.005;  // share of the time

}  // namespace

DraftPolicy::DraftPolicy(const std::vector<int>& buckets, int max_draft_len, int draft_len,
                         const DraftPolicyOptions& options)
    : draft_len_(draft_len), options_(options), acceptance_(max_draft_len), last_draft_len_(draft_len) {
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

int DraftPolicy::Choose(int bucket, const std::vector<int>& live_by_cap) {
  int largest_cap = static_cast<int>(live_by_cap.size()) - 1;
  while (largest_cap > 0 && live_by_cap[largest_cap] == 0) --largest_cap;
  const int draft_len = ChooseForPolicy(bucket, std::min(draft_len_, largest_cap), live_by_cap);
  if (draft_len > 0) drafted_ = {.bucket = bucket, .draft_len = draft_len, .live_by_cap = live_by_cap};
  return draft_len;
}

int DraftPolicy::ChooseForPolicy(int bucket, int upper, const std::vector<int>& live_by_cap) {
  switch (options_.kind) {
    case DraftPolicyKind::kFixed:
      return upper;
    case DraftPolicyKind::kSchedule:
      return std::min(upper, Scheduled(bucket));
    case DraftPolicyKind::kAdaptive:
      return Adapt(&buckets_.at(bucket), upper, live_by_cap);
  }
  CHECK(false) << "draft policy " << static_cast<int>(options_.kind);
}

int DraftPolicy::Scheduled(int bucket) const {
  auto entry = options_.schedule.lower_bound(bucket);
  return entry == options_.schedule.end() ? 0 : entry->second;
}

void DraftPolicy::Observe(const StepObservation& step) {
  acceptance_.Observe(step.tried, step.accepted);
  Bucket& bucket = buckets_.at(step.bucket);
  const int in_use = options_.kind == DraftPolicyKind::kAdaptive ? bucket.draft_len : draft_len_;
  bucket.times.Observe(step.draft_len, step.seconds, /*is_in_use=*/step.draft_len == in_use);
}

double DraftPolicy::SpeedUp() const {
  if (drafted_.bucket < 0) return 0;
  const Bucket& bucket = buckets_.at(drafted_.bucket);
  if (!bucket.times.known(0) || !bucket.times.known(drafted_.draft_len)) return 0;
  return Rate(bucket, drafted_.draft_len, drafted_.live_by_cap) / Rate(bucket, 0, drafted_.live_by_cap);
}

// Expected tokens per second of steps with this K.
double DraftPolicy::Rate(const Bucket& bucket, int draft_len, const std::vector<int>& live_by_cap) const {
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
  return tokens / bucket.times.Estimate(draft_len);
}

int DraftPolicy::Adapt(Bucket* bucket, int upper, const std::vector<int>& live_by_cap) {
  if (bucket->draft_len < 0) {
    bucket->draft_len = last_draft_len_;
    bucket->steps_to_probe = kFirstProbeGap;
  }
  last_draft_len_ = bucket->draft_len = std::min(bucket->draft_len, upper);
  if (!bucket->times.known(bucket->draft_len)) return bucket->draft_len;
  if (bucket->probe_steps_left == 0) Reconsider(bucket, upper, live_by_cap);
  if (bucket->probe_steps_left == 0 && --bucket->steps_to_probe < 0) StartProbe(bucket, upper, live_by_cap);
  if (bucket->probe_steps_left == 0) return bucket->draft_len;
  --bucket->probe_steps_left;
  return std::min(bucket->probe_draft_len, upper);
}

void DraftPolicy::Reconsider(Bucket* bucket, int upper, const std::vector<int>& live_by_cap) {
  double best_rate = Rate(*bucket, bucket->draft_len, live_by_cap) * (1 + kMargin);
  for (int draft_len = 0; draft_len <= upper; ++draft_len) {
    if (!bucket->times.known(draft_len)) continue;
    const double rate = Rate(*bucket, draft_len, live_by_cap);
    if (rate <= best_rate) continue;
    best_rate = rate;
    last_draft_len_ = bucket->draft_len = draft_len;
    bucket->steps_to_probe = kFirstProbeGap;
  }
}

// Probes the K measured longest ago among K / 2, K + 1 and K - 1. K / 2 is a candidate because a larger
// difference in K shows the cost of a draft more clearly.
void DraftPolicy::StartProbe(Bucket* bucket, int upper, const std::vector<int>& live_by_cap) {
  const int in_use = bucket->draft_len;
  int probe = -1;
  for (int draft_len : {in_use / 2, in_use + 1, in_use - 1}) {
    if (draft_len < 0 || draft_len > upper || draft_len == in_use) continue;
    if (probe < 0 || bucket->times.age(draft_len) > bucket->times.age(probe)) probe = draft_len;
  }
  bucket->steps_to_probe = kFirstProbeGap;
  if (probe < 0) return;
  bucket->probe_draft_len = probe;
  bucket->probe_steps_left = kProbeSteps;
  if (!bucket->times.known(probe)) return;
  const double loss = Rate(*bucket, in_use, live_by_cap) / Rate(*bucket, probe, live_by_cap) - 1;
  const double paid_back = kProbeSteps * loss / kProbeCost;
  bucket->steps_to_probe = static_cast<int>(std::clamp<double>(paid_back, kLeastProbeGap, kLargestProbeGap));
}

}  // namespace foredraft
