#include "client/load/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

LatencySummary Of(const std::vector<double>& values) {
  std::vector<WeightedSample> samples;
  for (const double value : values) samples.push_back({value, 1});
  return Summarize(std::move(samples));
}

TEST(LatencySummary, InterpolatesPercentilesAsNumpyDoes) {
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  const struct {
    const char* name;
    std::vector<double> values;
    double mean, p50, p90, p99, max;
  } kCases[] = {
      {"one", {7}, 7, 7, 7, 7, 7},
      {"two", {20, 10}, 15, 15, 19, 19.9, 20},
      {"three", {1, 2, 6}, 3, 2, 5.2, 5.92, 6},
      {"hundred", hundred, 50.5, 50.5, 90.1, 99.01, 100},  // numpy.percentile(range(1, 101), [50, 90, 99])
  };
  for (const auto& one : kCases) {
    const LatencySummary summary = Of(one.values);
    EXPECT_EQ(summary.count, static_cast<int64_t>(one.values.size())) << one.name;
    EXPECT_NEAR(summary.mean, one.mean, 1e-9) << one.name;
    EXPECT_NEAR(summary.p50, one.p50, 1e-9) << one.name;
    EXPECT_NEAR(summary.p90, one.p90, 1e-9) << one.name;
    EXPECT_NEAR(summary.p99, one.p99, 1e-9) << one.name;
    EXPECT_EQ(summary.max, one.max) << one.name;
  }
}

TEST(LatencySummary, TakesAWeightAsSoManySamples) {
  const LatencySummary weighted = Summarize({{5, 2}, {1, 3}, {9, 1}});
  const LatencySummary spelled = Of({1, 1, 1, 5, 5, 9});
  EXPECT_EQ(weighted.count, spelled.count);
  EXPECT_EQ(weighted.mean, spelled.mean);
  EXPECT_EQ(weighted.p50, spelled.p50);
  EXPECT_EQ(weighted.p90, spelled.p90);
  EXPECT_EQ(weighted.p99, spelled.p99);
}

TEST(LatencySummary, OfNothingCountsNothing) { EXPECT_EQ(Of({}).count, 0); }

// Sent at 1 s; tokens: one at 1.5 s, three at 1.8 s, two at 2.0 s.
MeasuredRequest Answer() {
  MeasuredRequest request{.due_s = 0.998, .sent_s = 1, .first_token_s = 1.5, .last_token_s = 2};
  request.gaps = {{.gap_ms = 300, .token_count = 3}, {.gap_ms = 200, .token_count = 2}};
  request.output_tokens = 6;
  request.usage.set_prompt_tokens(40);
  request.usage.set_cached_tokens(32);
  request.speculation.set_steps(2);
  request.speculation.set_draft_tokens(4);
  request.speculation.set_accepted_tokens(3);
  for (const int accepted : {2, 1}) request.speculation.add_accepted_per_position(accepted);
  return request;
}

MeasuredRequest Refused(const absl::Status& status) {
  return {.output_tokens = 3, .outcome = RequestOutcome::kFailed, .status = status};
}

TEST(RunFigures, HoldToTheirDefinitions) {
  const RunFigures figures = Evaluate({.requests = {Answer()}, .wall_s = 4, .cpu_s = 0.5});
  EXPECT_NEAR(figures.ttft_ms.mean, 500, 1e-9);
  EXPECT_NEAR(figures.tpot_ms.mean, 100, 1e-9);  // 500 ms over 5 tokens
  EXPECT_NEAR(figures.e2e_ms.mean, 1000, 1e-9);
  EXPECT_EQ(figures.inter_token_ms.count, 5);  // 3 x 100, 2 x 100
  EXPECT_NEAR(figures.inter_token_ms.p99, 100, 1e-9);
  EXPECT_EQ(figures.inter_chunk_ms.count, 2);
  EXPECT_NEAR(figures.inter_chunk_ms.p50, 250, 1e-9);
  EXPECT_EQ(figures.requests_per_s, 0.25);
  EXPECT_EQ(figures.input_tokens_per_s, 10);
  EXPECT_EQ(figures.output_tokens_per_s, 1.5);
  EXPECT_EQ(figures.cached_tokens, 32);
  EXPECT_EQ(figures.speculation.acceptance_length(), 2.5);
  EXPECT_EQ(figures.speculation.acceptance_rate(), 0.75);
  EXPECT_THAT(figures.speculation.accepted_per_position, ElementsAre(2, 1));
  EXPECT_EQ(figures.client.cpu_cores, 0.125);
  EXPECT_NEAR(figures.client.cpu_us_per_output_token, 0.5e6 / 6, 1e-6);
  EXPECT_NEAR(figures.client.send_delay_ms.mean, 2, 1e-9);
  EXPECT_THAT(figures.client.warnings, IsEmpty());
}

TEST(RunFigures, LeaveTpotToRequestsWithTwoTokens) {
  MeasuredRequest single = Answer();
  single.output_tokens = 1;
  single.last_token_s = single.first_token_s;
  single.gaps.clear();
  const RunFigures figures = Evaluate({.requests = {single}, .wall_s = 1});
  EXPECT_EQ(figures.ttft_ms.count, 1);
  EXPECT_EQ(figures.tpot_ms.count, 0);
  EXPECT_EQ(figures.inter_token_ms.count, 0);
}

TEST(RunFigures, CountFailuresByStatusAndNowhereElse) {
  const RunFigures figures = Evaluate({.requests = {Refused(absl::UnavailableError("gone")), Answer(),
                                                    Refused(absl::ResourceExhaustedError("queue full, 64")),
                                                    Refused(absl::ResourceExhaustedError("queue full, 65"))},
                                       .wall_s = 1});
  EXPECT_EQ(figures.sent, 4);
  EXPECT_EQ(figures.completed, 1);
  EXPECT_EQ(figures.failed, 3);
  EXPECT_EQ(figures.output_tokens, 6);
  EXPECT_EQ(figures.ttft_ms.count, 1);
  ASSERT_EQ(figures.errors.size(), 2u);
  EXPECT_EQ(figures.errors[0].code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(figures.errors[0].count, 2);
  EXPECT_EQ(figures.errors[0].message, "queue full, 64");
  EXPECT_EQ(figures.errors[1].code, absl::StatusCode::kUnavailable);
}

TEST(RunFigures, CountTheTokensOfInterruptedRequestsButNotTheirTimes) {
  MeasuredRequest cut = Answer();
  cut.outcome = RequestOutcome::kInterrupted;
  const RunFigures figures = Evaluate({.requests = {cut}, .wall_s = 1, .interrupted = true});
  EXPECT_EQ(figures.completed, 0);
  EXPECT_EQ(figures.interrupted_requests, 1);
  EXPECT_EQ(figures.output_tokens, 6);
  EXPECT_EQ(figures.input_tokens, 40);
  EXPECT_EQ(figures.e2e_ms.count, 0);
}

TEST(RunFigures, AccuseTheClientWhenItWasBusyOrLate) {
  EXPECT_THAT(Evaluate({.requests = {Answer()}, .wall_s = 1, .cpu_s = 0.79}).client.warnings, IsEmpty());
  EXPECT_THAT(Evaluate({.requests = {Answer()}, .wall_s = 1, .cpu_s = 0.81}).client.warnings,
              ElementsAre(HasSubstr("the client kept 0.81 cores busy")));
  EXPECT_THAT(Evaluate({.wall_s = 1, .cpu_s = 9}).client.warnings, IsEmpty());  // nothing was measured
  MeasuredRequest late = Answer();
  late.due_s = late.sent_s - 0.012;
  EXPECT_THAT(Evaluate({.requests = {late}, .wall_s = 1, .open_loop = true}).client.warnings,
              ElementsAre(HasSubstr("requests left 12.0 ms late at p99")));
  EXPECT_THAT(Evaluate({.requests = {late}, .wall_s = 1}).client.warnings, IsEmpty());
}

TEST(RunFigures, TakeTheRateThatWasSentFromTheDepartures) {
  std::vector<MeasuredRequest> requests(5, Answer());
  for (int i = 0; i < 5; ++i) requests[i].sent_s = i * 0.5;
  EXPECT_EQ(Evaluate({.requests = requests, .wall_s = 100}).sent_per_s, 2);
}

TEST(RunFigures, OfNoRequestAtAllAreZero) {
  const RunFigures figures = Evaluate({});
  EXPECT_EQ(figures.sent, 0);
  EXPECT_EQ(figures.output_tokens_per_s, 0);
  EXPECT_EQ(figures.speculation.acceptance_length(), 1);
}

}  // namespace
}  // namespace foredraft
