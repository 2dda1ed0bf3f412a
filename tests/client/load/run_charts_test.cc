#include "client/load/run_charts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace foredraft {
namespace {

// Sent at 1 s; tokens: one at 1.5 s, three at 1.8 s, two at 2.0 s.
MeasuredRequest Answer() {
  MeasuredRequest request{.sent_s = 1, .first_token_s = 1.5, .last_token_s = 2};
  request.gaps = {{.gap_ms = 300, .token_count = 3}, {.gap_ms = 200, .token_count = 2}};
  request.output_tokens = 6;
  return request;
}

double SumOf(const RunTimeline& timeline, const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) * timeline.interval_s;
}

TEST(RunCharts, TokensAreCountedWhenTheyArrived) {
  const RunTimeline timeline = TimelineOf({.requests = {Answer()}, .wall_s = 4});
  EXPECT_NEAR(timeline.interval_s, 0.05, 1e-12);
  ASSERT_EQ(timeline.tokens_per_s.size(), 80u);
  EXPECT_NEAR(timeline.tokens_per_s[30], 1 / 0.05, 1e-9);
  EXPECT_NEAR(SumOf(timeline, {timeline.tokens_per_s.begin() + 34, timeline.tokens_per_s.begin() + 38}), 3,
              1e-9);
  EXPECT_NEAR(SumOf(timeline, timeline.tokens_per_s), 6, 1e-9);
}

TEST(RunCharts, RequestsCountFromSendingToTheirLastToken) {
  MeasuredRequest second = Answer();
  second.sent_s = 1.975;
  const RunTimeline timeline = TimelineOf({.requests = {Answer(), second}, .wall_s = 4});
  EXPECT_NEAR(SumOf(timeline, timeline.requests), 1 + 0.025, 1e-9);
  EXPECT_NEAR(timeline.requests[20], 1, 1e-9);
  EXPECT_NEAR(timeline.requests[39], 1.5, 1e-9);
  EXPECT_NEAR(timeline.requests[41], 0, 1e-9);
}

TEST(RunCharts, AnEndTooShortForARateIsLeftOut) {
  MeasuredRequest late = Answer();
  late.last_token_s = 2.51;
  late.gaps[1].gap_ms = 710;
  // Intervals of 0.05 s; the last one has 0.01 s, in which two tokens arrive.
  const RunTimeline timeline = TimelineOf({.requests = {late}, .wall_s = 2.51});
  ASSERT_EQ(timeline.tokens_per_s.size(), 50u);
  EXPECT_NEAR(SumOf(timeline, timeline.tokens_per_s), 4, 1e-9);
}

TEST(RunCharts, NothingRanIsNoTimeline) {
  EXPECT_EQ(TimelineOf({}).interval_s, 0);
  EXPECT_TRUE(TimelineOf({}).tokens_per_s.empty());
}

TEST(RunCharts, LatenciesAreOfCompletedRequests) {
  MeasuredRequest failed = Answer();
  failed.outcome = RequestOutcome::kFailed;
  const RunCharts charts = ChartsOf({.requests = {Answer(), failed}, .wall_s = 4});
  EXPECT_EQ(charts.latencies.ttft_ms.size(), 1u);
  EXPECT_EQ(charts.latencies.inter_token_ms.size(), 2u);
}

}  // namespace
}  // namespace foredraft
