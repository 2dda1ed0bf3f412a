// K and the acceptance rule in plans, case by case. draft_policy_test tests the policy itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/scheduler/scheduler_stage.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Scheduler, GivesAllRanksOneDraftLenAndOneBucket) {
  SchedulerOptions options = SmallOptions();
  options.rank_count = 2;
  options.max_draft_len = 3;
  options.drafter = {.module_count = 1, .rows_ahead = 3};
  options.draft_len = 3;
  Stage stage(options);
  for (uint64_t id = 1; id <= 5; ++id) stage.Submit(id, 5, 50);
  stage.scheduler.SetSpeculation({.draft_len = 2});
  const IterationPlan plan = stage.Turn();
  EXPECT_EQ(plan.draft_len, 2);
  EXPECT_THAT(plan.prefill_rows, ElementsAre(15, 10));
  EXPECT_EQ(plan.ranks[0].live_slots.size(), 3u);
  EXPECT_EQ(plan.ranks[1].live_slots.size(), 2u);
  EXPECT_EQ(plan.decode_bucket, 4);
}

TEST(Scheduler, ChoosesKOfTheBucketThatThePlanTurnsOutToHave) {
  SchedulerOptions options = SmallOptions();
  options.max_num_tokens = 64;
  options.max_draft_len = 3;
  options.drafter = {.module_count = 1, .rows_ahead = 3};
  options.draft_len = 3;
  options.draft_policy = {.kind = DraftPolicyKind::kSchedule, .schedule = {{1, 3}, {2, 1}}};
  Stage stage(options);
  stage.Submit(1, 5, 50);
  EXPECT_EQ(stage.Turn().draft_len, 3);
  EXPECT_EQ(stage.scheduler.load().draft_len, 3);
  stage.Submit(2, 64, 30);  // fills the budget: prefilled at once, so two decode in this plan
  IterationPlan plan = stage.Turn();
  EXPECT_EQ(plan.decode_bucket, 2);
  EXPECT_EQ(plan.draft_len, 1);
  EXPECT_EQ(stage.scheduler.load().draft_len, 1);
  for (uint64_t id = 3; id <= 4; ++id) stage.Submit(id, 32, 30);
  plan = stage.Turn();
  EXPECT_EQ(plan.decode_bucket, 4);
  EXPECT_EQ(plan.draft_len, 0);
  stage.Drain();
}

// K = 0 included: those requests take no drafts, so none are made.
TEST(Scheduler, KeepsKToTheLargestCapAmongTheLiveRequestsOfAllRanks) {
  SchedulerOptions options = SmallOptions();
  options.rank_count = 2;
  options.max_draft_len = 3;
  options.drafter = {.module_count = 1, .rows_ahead = 3};
  options.draft_len = 3;
  Stage stage(options);
  const auto submit = [&stage](uint64_t id, int draft_cap, int max_tokens) {
    Request request = stage.MakeRequest(id, 5, max_tokens);
    request.draft_cap = draft_cap;
    stage.Submit(request);
  };
  submit(1, 0, 80);
  EXPECT_EQ(stage.Turn().draft_len, 0);
  EXPECT_EQ(stage.scheduler.load().draft_len, 0);
  submit(2, 2, 10);
  while (stage.Turn().draft_len == 0) ASSERT_LT(stage.scheduler.load().running, 3);
  EXPECT_EQ(stage.scheduler.load().draft_len, 2);  // the other rank's request
  while (stage.scheduler.load().running == 2) stage.Turn();
  EXPECT_EQ(stage.Turn().draft_len, 0);
  stage.Drain();
}

TEST(Scheduler, AdaptsKToTheTimesItsResultsShow) {
  SchedulerOptions options = SmallOptions();
  options.max_seq_len = 4000;
  options.groups[0].block_count = 4001;
  options.max_draft_len = 3;
  options.drafter = {.module_count = 1, .rows_ahead = 3};
  options.draft_len = 3;
  options.draft_policy.kind = DraftPolicyKind::kAdaptive;
  std::vector<int> counts[2] = {std::vector<int>(4), std::vector<int>(4)};
  for (int crowded : {0, 1}) {
    Stage stage(options);
    for (uint64_t id = 1; id <= (crowded ? 4u : 1u); ++id) stage.Submit(id, 5, 1200);
    for (int turn = 0; turn < 400; ++turn) ++counts[crowded][stage.Turn().draft_len];
    stage.scheduler.EndAll(FinishReason::kCancelled, absl::OkStatus());
    stage.Drain();
  }
  EXPECT_GT(counts[0][2] + counts[0][3], 300) << testing::PrintToString(counts[0]);
  EXPECT_GT(counts[1][0] + counts[1][1], 300) << testing::PrintToString(counts[1]);
}

struct AcceptanceCase {
  const char* name;
  AcceptanceRule acceptance;
  const char* text;
};

class SchedulerAcceptance : public testing::TestWithParam<AcceptanceCase> {};

TEST_P(SchedulerAcceptance, IsInEveryPlan) {
  SchedulerOptions options = SmallOptions();
  options.acceptance = GetParam().acceptance;
  Stage stage(options);
  stage.Submit(1, 5, 50);
  for (int turn = 0; turn < 2; ++turn) {
    const IterationPlan plan = stage.Turn();
    EXPECT_EQ(plan.acceptance, GetParam().acceptance);
    EXPECT_THAT(plan.DebugString(), HasSubstr(GetParam().text));
  }
  stage.scheduler.SetSpeculation({});
  EXPECT_EQ(stage.Turn().acceptance, AcceptanceRule{});
  stage.Drain();
}

const AcceptanceCase kAcceptances[] = {
    {"Strict", {}, " decode_bucket 1 "},
    {"Relaxed",
     {.relaxed_topk = 10, .relaxed_delta = 0.5f},
     " acceptance { relaxed_topk 10 relaxed_delta 0.5 } decode_bucket 1 "},
    {"Forced", {.forced_length = 2.5f}, " acceptance { forced_length 2.5 } decode_bucket 1 "},
};
INSTANTIATE_TEST_SUITE_P(All, SchedulerAcceptance, testing::ValuesIn(kAcceptances),
                         [](const auto& info) { return info.param.name; });

TEST(Scheduler, AdmitsARequestThatOptedOutOfRelaxationAsStrict) {
  Stage stage(SmallOptions());
  Request request = stage.MakeRequest(1, 5, 5);
  request.strict_acceptance = true;
  stage.Submit(request);
  stage.Submit(2, 5, 5);
  const IterationPlan plan = stage.Turn();
  ASSERT_EQ(plan.ranks[0].admissions.size(), 2u);
  EXPECT_TRUE(plan.ranks[0].admissions[0].strict);
  EXPECT_FALSE(plan.ranks[0].admissions[1].strict);
  EXPECT_THAT(plan.DebugString(), HasSubstr(" strict 1 prompt_len 5 length_limit 9 "));
  stage.Drain();
}

}  // namespace
}  // namespace foredraft
