#include "scheduler/policies/draft_policy.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace foredraft {
namespace {

// EWMA weights of a step in the recent and the long-run mean of a bucket's expected tokens.
constexpr double kTokensWeight = 1.0 / 16, kLongRunWeight = 1.0 / 256;
constexpr int kPublishGap = 32;  // steps between two changes of the device's calibration

}  // namespace

DraftPolicy::DraftPolicy(const std::vector<int>& buckets, int max_draft_len, int draft_len,
                         const DraftPolicyOptions& options, bool drafts_at_once)
    : max_draft_len_(max_draft_len),
      draft_len_(draft_len),
      options_(options),
      acceptance_(max_draft_len),
      calibration_(max_draft_len),
      published_(max_draft_len),
      search_(buckets, max_draft_len, draft_len, drafts_at_once) {}

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
    case DraftPolicyKind::kAdaptive:
      return search_.Next(bucket, {.upper = upper, .tokens = TokensIn(bucket, live_by_cap)});
    case DraftPolicyKind::kConfidence:
      return ChooseByConfidence(bucket, upper, drafts);
  }
  CHECK(false) << "draft policy " << static_cast<int>(options_.kind);
}

int DraftPolicy::Scheduled(int bucket) const {
  auto entry = options_.schedule.lower_bound(bucket);
  return entry == options_.schedule.end() ? 0 : entry->second;
}

// K changes slowly, because a step's drafts are verified in the next step; v may change with every step whose
// drafts are known.
StepShape DraftPolicy::ChooseByConfidence(int bucket, int upper, const StepDrafts& drafts) {
  const std::vector<double> tokens = TokensByShape(drafts, calibration_, bucket, max_draft_len_);
  ExpectTokens(bucket, drafts, tokens);
  const StepShape slow = search_.Next(bucket, {.upper = upper, .cuts = true, .tokens = TokensIn(bucket, {})});
  if (!drafts.fresh || slow != search_.in_use(bucket)) return slow;
  const StepTimes& times = search_.times(bucket);
  StepShape best = slow;
  double best_rate = 0;
  for (int verify_len = 1; verify_len <= slow.draft_len; ++verify_len) {
    const StepShape shape = {slow.draft_len, verify_len};
    if (!times.known(shape)) continue;
    const double rate = tokens[shape.index()] / times.Estimate(shape);
    if (rate > best_rate) std::tie(best, best_rate) = std::pair(shape, rate);
  }
  return best;
}

// While no sequence has confidences, the recent mean moves towards the long-run mean. An expectation from
// mean chances would be worse: it would not know how sequences differ.
void DraftPolicy::ExpectTokens(int bucket, const StepDrafts& drafts, const std::vector<double>& tokens) {
  ExpectedTokens& expected = tokens_[bucket];
  if (expected.recent.empty()) expected.recent = expected.long_run = std::vector<double>(tokens.size());
  const bool seen = drafts.have_confidences() || expected.seen_count == 0;
  if (seen) ++expected.seen_count;
  const double first = 1.0 / expected.seen_count;
  const int live = std::max(1, drafts.live_count());
  for (size_t i = 0; i < tokens.size(); ++i) {
    double& long_run = expected.long_run[i];
    double& recent = expected.recent[i];
    if (seen) long_run += std::max(first, kLongRunWeight) * (tokens[i] / live - long_run);
    recent += std::max(seen ? first : 0, kTokensWeight) * ((seen ? tokens[i] / live : long_run) - recent);
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
  search_.Observe(step.bucket, {step.draft_len, step.draft_len - step.cut_len}, step.seconds);
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
  const StepTimes& times = search_.times(drafted_.bucket);
  if (!times.known({}) || !times.known(drafted_.shape)) return 0;
  const auto tokens = TokensIn(drafted_.bucket, drafted_.live_by_cap);
  return tokens(drafted_.shape) / times.Estimate(drafted_.shape) * times.Estimate({}) / tokens({});
}

std::function<double(StepShape)> DraftPolicy::TokensIn(int bucket,
                                                       const std::vector<int>& live_by_cap) const {
  if (const auto expected = tokens_.find(bucket); reads_confidences() && expected != tokens_.end()) {
    return [&recent = expected->second.recent](StepShape shape) { return recent[shape.index()]; };
  }
  return [this, &live_by_cap](StepShape shape) { return TokensPerStep(shape.draft_len, live_by_cap); };
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

}  // namespace foredraft
