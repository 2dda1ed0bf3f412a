#include "client/load/run_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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

TEST(RunStats, FollowTheirDefinitions) {
  const RunStats stats = Evaluate({.requests = {Answer()}, .wall_s = 4, .cpu_s = 0.5});
  EXPECT_NEAR(stats.ttft_ms.mean, 500, 1e-9);
  EXPECT_NEAR(stats.tpot_ms.mean, 100, 1e-9);  // 500 ms over 5 tokens
  EXPECT_NEAR(stats.e2e_ms.mean, 1000, 1e-9);
  EXPECT_EQ(stats.inter_token_ms.count, 5);  // 3 x 100, 2 x 100
  EXPECT_NEAR(stats.inter_token_ms.p99, 100, 1e-9);
  EXPECT_EQ(stats.inter_chunk_ms.count, 2);
  EXPECT_NEAR(stats.inter_chunk_ms.p50, 250, 1e-9);
  EXPECT_EQ(stats.requests_per_s, 0.25);
  EXPECT_EQ(stats.input_tokens_per_s, 10);
  EXPECT_EQ(stats.output_tokens_per_s, 1.5);
  EXPECT_EQ(stats.cached_tokens, 32);
  EXPECT_EQ(stats.speculation.acceptance_length(), 2.5);
  EXPECT_EQ(stats.speculation.acceptance_rate(), 0.75);
  EXPECT_THAT(stats.speculation.accepted_per_position, ElementsAre(2, 1));
  EXPECT_EQ(stats.client.cpu_cores, 0.125);
  EXPECT_NEAR(stats.client.cpu_us_per_output_token, 0.5e6 / 6, 1e-6);
  EXPECT_NEAR(stats.client.send_delay_ms.mean, 2, 1e-9);
  EXPECT_THAT(stats.client.warnings, IsEmpty());
}

TEST(RunStats, LeaveTpotToRequestsWithTwoTokens) {
  MeasuredRequest single = Answer();
  single.output_tokens = 1;
  single.last_token_s = single.first_token_s;
  single.gaps.clear();
  const RunStats stats = Evaluate({.requests = {single}, .wall_s = 1});
  EXPECT_EQ(stats.ttft_ms.count, 1);
  EXPECT_EQ(stats.tpot_ms.count, 0);
  EXPECT_EQ(stats.inter_token_ms.count, 0);
}

TEST(RunStats, CountFailuresByStatusAndNowhereElse) {
  const RunStats stats = Evaluate({.requests = {Refused(absl::UnavailableError("gone")), Answer(),
                                                Refused(absl::ResourceExhaustedError("queue full, 64")),
                                                Refused(absl::ResourceExhaustedError("queue full, 65"))},
                                   .wall_s = 1});
  EXPECT_EQ(stats.sent, 4);
  EXPECT_EQ(stats.completed, 1);
  EXPECT_EQ(stats.failed, 3);
  EXPECT_EQ(stats.output_tokens, 6);
  EXPECT_EQ(stats.ttft_ms.count, 1);
  ASSERT_EQ(stats.errors.size(), 2u);
  EXPECT_EQ(stats.errors[0].code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(stats.errors[0].count, 2);
  EXPECT_EQ(stats.errors[0].message, "queue full, 64");
  EXPECT_EQ(stats.errors[1].code, absl::StatusCode::kUnavailable);
}

TEST(RunStats, CountTheTokensOfInterruptedRequestsButNotTheirTimes) {
  MeasuredRequest cut = Answer();
  cut.outcome = RequestOutcome::kInterrupted;
  const RunStats stats = Evaluate({.requests = {cut}, .wall_s = 1, .interrupted = true});
  EXPECT_EQ(stats.completed, 0);
  EXPECT_EQ(stats.interrupted_requests, 1);
  EXPECT_EQ(stats.output_tokens, 6);
  EXPECT_EQ(stats.input_tokens, 40);
  EXPECT_EQ(stats.e2e_ms.count, 0);
}

MeasuredRequest Of(const std::string& category, double seconds, int accepted) {
  MeasuredRequest request = Answer();
  request.category = category;
  request.last_token_s = request.sent_s + seconds;
  request.speculation.set_accepted_tokens(accepted);
  request.speculation.set_accepted_per_position(0, accepted);
  return request;
}

TEST(RunStats, HaveARowForEachCategoryOfCompletedRequests) {
  MeasuredRequest failed = Of("math", 1, 0), cut = Of("math", 1, 0);
  failed.outcome = RequestOutcome::kFailed;
  cut.outcome = RequestOutcome::kInterrupted;
  const RunStats stats = Evaluate(
      {.requests = {Of("math", 2, 1), Of("coding", 1, 2), Of("math", 4, 0), failed, cut}, .wall_s = 4});
  ASSERT_EQ(stats.categories.size(), 2u);
  const CategoryStats &coding = stats.categories[0], &math = stats.categories[1];
  EXPECT_EQ(coding.name, "coding");
  EXPECT_EQ(coding.completed, 1);
  EXPECT_EQ(coding.output_tokens_per_s_per_user(), 6);
  EXPECT_EQ(coding.speculation.acceptance_length(), 2);  // 2 drafts in 2 steps
  EXPECT_EQ(math.name, "math");
  EXPECT_EQ(math.completed, 2);
  EXPECT_EQ(math.output_tokens, 12);
  EXPECT_EQ(math.output_tokens_per_s_per_user(), 2);  // 12 tokens in 2 s and 4 s
  // Over all steps of the category, not the mean over its requests: 1 draft in 4 steps.
  EXPECT_EQ(math.speculation.acceptance_length(), 1.25);
  EXPECT_THAT(math.speculation.acceptance_rate_per_position(), ElementsAre(0.25, 0.5));
  EXPECT_THAT(Evaluate({.requests = {Answer()}, .wall_s = 1}).categories, IsEmpty());
}

TEST(RunStats, WarnWhenTheClientWasBusyOrLate) {
  EXPECT_THAT(Evaluate({.requests = {Answer()}, .wall_s = 1, .cpu_s = 0.79}).client.warnings, IsEmpty());
  EXPECT_THAT(Evaluate({.requests = {Answer()}, .wall_s = 1, .cpu_s = 0.81}).client.warnings,
              ElementsAre(HasSubstr("the client kept 0.81 cores busy")));
  EXPECT_THAT(Evaluate({.wall_s = 1, .cpu_s = 9}).client.warnings,
              IsEmpty());  // no tokens: nothing was measured
  MeasuredRequest late = Answer();
  late.due_s = late.sent_s - 0.012;
  EXPECT_THAT(Evaluate({.requests = {late}, .wall_s = 1, .open_loop = true}).client.warnings,
              ElementsAre(HasSubstr("requests were sent 12.0 ms late at p99")));
  EXPECT_THAT(Evaluate({.requests = {late}, .wall_s = 1}).client.warnings, IsEmpty());
}

TEST(RunStats, TakeTheRateThatWasSentFromTheDepartures) {
  std::vector<MeasuredRequest> requests(5, Answer());
  for (int i = 0; i < 5; ++i) requests[i].sent_s = i * 0.5;
  EXPECT_EQ(Evaluate({.requests = requests, .wall_s = 100}).sent_per_s, 2);
}

TEST(RunStats, OfNoRequestAtAllAreZero) {
  const RunStats stats = Evaluate({});
  EXPECT_EQ(stats.sent, 0);
  EXPECT_EQ(stats.output_tokens_per_s, 0);
  EXPECT_EQ(stats.speculation.acceptance_length(), 1);
}

}  // namespace
}  // namespace foredraft
