// Sequences after the loss of a rank: they wait in their old order, replay what was delivered, and go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "tests/scheduler/scheduler_stage.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::map<uint64_t, std::vector<int32_t>> TokensOf(const std::vector<RequestUpdate>& updates) {
  std::map<uint64_t, std::vector<int32_t>> tokens;
  for (const RequestUpdate& update : updates) {
    std::vector<int32_t>& own = tokens[update.request_id];
    own.insert(own.end(), update.token_ids.begin(), update.token_ids.end());
  }
  return tokens;
}

std::vector<int32_t> ExpectedTokens(uint64_t seed, int prompt_len, int max_tokens) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < max_tokens; ++i) tokens.push_back(ScriptedToken(seed, prompt_len + i));
  return tokens;
}

SchedulerOptions Resuming() {
  SchedulerOptions options = SmallOptions();
  options.resume = true;
  return options;
}

SchedulerOptions WithDrafts() {
  SchedulerOptions options = Resuming();
  options.max_draft_len = 3;
  options.drafter = {.module_count = 1, .rows_ahead = 3};
  options.draft_len = 3;
  return options;
}

TEST(Resume, TheDeliveredTokensAreReplayedAndNotDeliveredAgain) {
  Stage stage(WithDrafts());
  stage.Submit(1, 6, 40);
  std::vector<RequestUpdate> updates;
  while (TokensOf(updates)[1].size() < 12) {
    stage.Turn();
    for (RequestUpdate& update : stage.scheduler.TakeUpdates()) updates.push_back(std::move(update));
  }
  const std::vector<int32_t> delivered = TokensOf(updates)[1];
  stage.LoseRanks();
  EXPECT_EQ(stage.scheduler.load().waiting, 1);
  EXPECT_EQ(stage.scheduler.load().running, 0);

  // The prefill samples the first token again, the steps are given the rest, K + 1 at a time.
  size_t replayed = 1;
  while (replayed < delivered.size()) {
    const IterationPlan plan = stage.Turn();
    ASSERT_EQ(plan.ranks[0].given_tokens.size(), 1u);
    const std::vector<int32_t>& given = plan.ranks[0].given_tokens[0].token_ids;
    EXPECT_EQ(given.size(), std::min<size_t>(plan.draft_len + 1, delivered.size() - replayed));
    EXPECT_TRUE(std::equal(given.begin(), given.end(), delivered.begin() + replayed));
    replayed += given.size();
    EXPECT_THAT(stage.scheduler.TakeUpdates(), IsEmpty());
  }
  EXPECT_EQ(stage.scheduler.load().replayed_tokens, delivered.size());
  EXPECT_EQ(stage.scheduler.load().resumed_requests, 1u);
  EXPECT_THAT(stage.Turn().ranks[0].given_tokens, IsEmpty());
  stage.Drain();
  for (RequestUpdate& update : stage.scheduler.TakeUpdates()) {
    EXPECT_FALSE(update.first_token);
    updates.push_back(std::move(update));
  }
  EXPECT_EQ(TokensOf(updates)[1], ExpectedTokens(1, 6, 40));
}

TEST(Resume, AdmittedSequencesComeBeforeNewOnesInTheirOldOrder) {
  Stage stage(Resuming());  // 4 slots
  for (uint64_t id = 1; id <= 4; ++id) stage.Submit(id, 5, 40);
  EXPECT_THAT(AdmittedSeeds(stage.Turn()), ElementsAre(1, 2, 3, 4));
  Request urgent = stage.MakeRequest(9, 5, 40);
  urgent.priority = 1;
  stage.Submit(urgent);
  stage.scheduler.Cancel(2, FinishReason::kCancelled);
  EXPECT_THAT(AdmittedSeeds(stage.Turn()), ElementsAre(9));
  urgent.id = urgent.sampling.seed = 10;
  stage.Submit(urgent);
  stage.LoseRanks();
  EXPECT_THAT(AdmittedSeeds(stage.Turn()), ElementsAre(1, 3, 4, 9));
  stage.LoseRanks();  // in the replay
  EXPECT_THAT(AdmittedSeeds(stage.Turn()), ElementsAre(1, 3, 4, 9));
  stage.scheduler.Cancel(1, FinishReason::kCancelled);
  EXPECT_THAT(AdmittedSeeds(stage.Turn()), ElementsAre(10));
  stage.Drain();
}

TEST(Resume, GivenTokensFillTheRowsOfDraftsWhateverTheCap) {
  Stage stage(WithDrafts());
  Request request = stage.MakeRequest(1, 6, 40);
  request.draft_cap = 0;
  stage.Submit(request);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(stage.Turn().draft_len, 0);
  stage.LoseRanks();
  const IterationPlan plan = stage.Turn();
  EXPECT_EQ(plan.draft_len, 3);
  EXPECT_EQ(plan.ranks[0].given_tokens.at(0).token_ids.size(), 4u);
  stage.Drain();
  EXPECT_EQ(TokensOf(stage.scheduler.TakeUpdates())[1], ExpectedTokens(1, 6, 40));
}

TEST(Resume, GivenStepsSayNothingAboutDrafts) {
  Stage stage(WithDrafts());
  stage.Submit(1, 6, 60);
  for (int i = 0; i < 9; ++i) stage.Turn();
  stage.scheduler.TakeUpdates();
  stage.LoseRanks();
  stage.Drain();
  for (const RequestUpdate& update : stage.scheduler.TakeUpdates()) {
    EXPECT_EQ(update.has_step, !update.token_ids.empty());
    EXPECT_LE(update.step.accepted, update.step.drafts_verified);
  }
}

TEST(Resume, FiveLossesWithoutANewTokenEndARequestThatWasInThePlan) {
  Stage stage(Resuming());
  stage.Submit(1, 5, 40);
  for (int loss = 1; loss <= 4; ++loss) {
    stage.Launch();
    stage.LoseRanks();
    EXPECT_THAT(stage.scheduler.TakeUpdates(), IsEmpty()) << loss;
  }
  stage.Submit(2, 5, 3);
  stage.Launch();
  stage.LoseRanks();
  const std::vector<RequestUpdate> updates = stage.scheduler.TakeUpdates();
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_EQ(updates[0].request_id, 1u);
  EXPECT_EQ(updates[0].finish, FinishReason::kError);
  EXPECT_EQ(updates[0].error.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(updates[0].error.message()),
              HasSubstr("rank 0 lost; the request was in a lost step 5 times without a new token"));
  stage.Drain();
  EXPECT_EQ(TokensOf(stage.scheduler.TakeUpdates())[2], ExpectedTokens(2, 5, 3));
}

TEST(Resume, ANewTokenBetweenLossesForgivesThem) {
  Stage stage(Resuming());
  stage.Submit(1, 5, 60);
  for (int loss = 1; loss <= 30; ++loss) {
    const size_t before = stage.scheduler.TakeUpdates().size();
    EXPECT_EQ(before, 0u);
    std::vector<RequestUpdate> fresh;
    while (fresh.empty()) {
      stage.Turn();
      fresh = stage.scheduler.TakeUpdates();
    }
    ASSERT_EQ(fresh[0].finish, FinishReason::kNone) << fresh[0].error;
    stage.Launch();
    stage.LoseRanks();
  }
  stage.Drain();
  EXPECT_EQ(stage.scheduler.TakeUpdates().back().finish, FinishReason::kLength);
  EXPECT_EQ(stage.scheduler.load().resumed_requests, 30u);
}

TEST(Resume, LossesThatDoNotHitARequestDoNotCount) {
  Stage stage(Resuming());
  stage.Submit(1, 5, 40);
  stage.Turn();
  for (int loss = 1; loss <= 10; ++loss) stage.LoseRanks();  // nothing is in flight
  stage.Drain();
  EXPECT_EQ(TokensOf(stage.scheduler.TakeUpdates())[1], ExpectedTokens(1, 5, 40));
}

// Only a fault of ours can do this: the answer must not go on with other tokens.
TEST(Resume, ADifferentFirstTokenEndsTheRequest) {
  Stage stage(Resuming());
  stage.Submit(1, 5, 40);
  stage.Turn();
  stage.scheduler.TakeUpdates();
  stage.LoseRanks();
  const IterationPlan plan = stage.scheduler.Plan(stage.now);
  SlotResult slot{.slot = plan.ranks[0].live_slots.at(0), .first_token = true};
  slot.token_ids = {ScriptedToken(1, 5) + 1, ScriptedToken(1, 6)};
  slot.length = 6;
  stage.scheduler.Commit({{.number = plan.number, .slots = {slot}}});
  const std::vector<RequestUpdate> updates = stage.scheduler.TakeUpdates();
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_EQ(updates[0].error.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(updates[0].error.message()),
              HasSubstr("token 0 of the answer was computed again as"));
  EXPECT_THAT(updates[0].token_ids, IsEmpty());
}

TEST(Resume, DeadlinesEndRequestsThatWaitForTheRanks) {
  Stage stage(Resuming());
  Request request = stage.MakeRequest(1, 5, 40);
  request.deadline = stage.now + std::chrono::seconds(1);
  stage.Submit(request);
  stage.Turn();
  stage.scheduler.TakeUpdates();
  stage.LoseRanks();
  stage.scheduler.ExpireDeadlines(stage.now);
  EXPECT_THAT(stage.scheduler.TakeUpdates(), IsEmpty());
  stage.scheduler.ExpireDeadlines(stage.now + std::chrono::seconds(1));
  EXPECT_EQ(stage.scheduler.TakeUpdates().at(0).finish, FinishReason::kDeadline);
  EXPECT_FALSE(stage.scheduler.HasWork());
}

}  // namespace
}  // namespace foredraft
