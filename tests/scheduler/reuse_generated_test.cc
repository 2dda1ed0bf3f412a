// Blocks of generated tokens in the prefix index (SchedulerOptions::reuse_generated). scheduler_property_test
// checks their rows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/scheduler/scheduler_stage.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kBlock = 4;

SchedulerOptions Generating(int draft_len = 0, int offer_margin = 0) {
  SchedulerOptions options = SmallOptions();
  options.reuse_generated = true;
  options.max_draft_len = options.draft_len = draft_len;
  options.drafter = {.rows_ahead = draft_len, .offer_margin = offer_margin};
  return options;
}

class Conversation {
 public:
  explicit Conversation(const SchedulerOptions& options) : stage_(options) {}

  Stage& stage() { return stage_; }

  // Runs a first turn to its end.
  void First(int prompt_len, int max_tokens) {
    stage_.Submit(1, prompt_len, max_tokens);
    prompt_len_ = prompt_len;
    stage_.Drain();
    stage_.scheduler.TakeUpdates();
  }

  // The cached tokens of a turn whose prompt goes on with `answer_len` tokens of the first one's answer.
  int CachedTokens(int answer_len, uint64_t id = 2, uint64_t scope = 0) {
    Request request = stage_.MakeRequest(1, prompt_len_, 1);
    for (int i = 0; i < answer_len; ++i) {
      request.prompt_ids.push_back(ScriptedToken(1, prompt_len_ + i));
    }
    for (int i = 0; i < 3; ++i) request.prompt_ids.push_back(41 + i);
    request.id = request.sampling.seed = id;
    request.reuse_scope = scope;
    stage_.Submit(request);
    stage_.Drain();
    const std::vector<RequestUpdate> updates = stage_.scheduler.TakeUpdates();
    for (const RequestUpdate& update : updates) {
      if (update.request_id == id && update.first_token) return update.cached_tokens;
    }
    ADD_FAILURE() << "no first token";
    return -1;
  }

 private:
  Stage stage_;
  int prompt_len_ = 0;
};

// The last token has no row.
TEST(ReuseGenerated, TheNextTurnHasTheFullBlocksBeforeTheLastToken) {
  for (const int draft_len : {0, 3}) {
    for (int answer_len = 1; answer_len <= 12; ++answer_len) {
      Conversation conversation(Generating(draft_len));
      conversation.First(6, answer_len);
      EXPECT_EQ(conversation.CachedTokens(answer_len), (6 + answer_len - 1) / kBlock * kBlock)
          << "K " << draft_len << ", " << answer_len << " tokens";
    }
  }
}

TEST(ReuseGenerated, BlocksThatLaterStepsRewriteAreLeftOut) {
  for (int answer_len = 1; answer_len <= 12; ++answer_len) {
    Conversation conversation(Generating(/*draft_len=*/3, /*offer_margin=*/2));
    conversation.First(6, answer_len);
    EXPECT_EQ(conversation.CachedTokens(answer_len), (6 + answer_len - 1 - 2) / kBlock * kBlock)
        << answer_len << " tokens";
  }
}

TEST(ReuseGenerated, WithoutTheKeyOnlyThePromptIsReused) {
  SchedulerOptions options = Generating();
  options.reuse_generated = false;
  Conversation conversation(options);
  conversation.First(6, 20);
  EXPECT_EQ(conversation.CachedTokens(20), 4);
}

TEST(ReuseGenerated, ATurnThatDiffersHasTheBlocksBeforeTheDifference) {
  Conversation conversation(Generating());
  conversation.First(6, 20);
  EXPECT_EQ(conversation.CachedTokens(11), 16);
}

TEST(ReuseGenerated, AnotherScopeHasNone) {
  Conversation conversation(Generating());
  conversation.First(6, 20);
  EXPECT_EQ(conversation.CachedTokens(20, /*id=*/2, /*scope=*/7), 0);
}

TEST(ReuseGenerated, ACancelledAnswerIsReusedAsFarAsItWasCommitted) {
  Conversation conversation(Generating());
  Stage& stage = conversation.stage();
  conversation.First(6, 1);
  stage.Submit(5, 6, 60);
  for (int i = 0; i < 10; ++i) stage.Turn();  // 11 tokens: length 16
  stage.Launch();                             // the step in flight writes position 16
  stage.scheduler.Cancel(5, FinishReason::kCancelled);
  stage.Commit();
  stage.Drain();
  Request next = stage.MakeRequest(5, 6, 1);
  for (int i = 0; i < 20; ++i) next.prompt_ids.push_back(ScriptedToken(5, 6 + i));
  next.id = next.sampling.seed = 6;
  stage.Submit(next);
  stage.scheduler.TakeUpdates();
  stage.Drain();
  EXPECT_EQ(stage.scheduler.TakeUpdates().front().cached_tokens, 16);
}

// A long answer must not take the windows of other prompts' ends.
TEST(ReuseGenerated, AnAnswerHasOnePrefixEnd) {
  SchedulerOptions options = Generating();
  options.groups.push_back({.tokens_per_block = 2, .lookback = 5, .host_frames_per_block = 3});
  options.groups[1].block_count = options.MinBlockCount(options.groups[1]) + 60;
  Conversation conversation(options);
  conversation.First(6, 60);
  // Of its prompt, at 4: two blocks; of its answer, at 64: three.
  EXPECT_EQ(conversation.stage().scheduler.load().ranks[0].groups[1].cached, 5);
  EXPECT_EQ(conversation.CachedTokens(60), 64);
}

// Its prompt may have had rows of generated tokens: computed as a prompt, it might choose another token.
TEST(ReuseGenerated, AfterALossTheFirstTokenIsGiven) {
  for (const bool reuses : {true, false}) {
    SchedulerOptions options = Generating();
    options.reuse_generated = reuses;
    options.resume = true;
    Stage stage(options);
    stage.Submit(1, 6, 40);
    EXPECT_THAT(stage.Turn().ranks[0].first_masks, IsEmpty());
    stage.LoseRanks();
    const IterationPlan plan = stage.Turn();
    if (reuses) {
      ASSERT_THAT(plan.ranks[0].first_masks, SizeIs(1));
      EXPECT_THAT(plan.ranks[0].masks.at(plan.ranks[0].first_masks[0].mask_index)->ids,
                  ElementsAre(ScriptedToken(1, 6)));
    } else {
      EXPECT_THAT(plan.ranks[0].first_masks, IsEmpty());
    }
    stage.Drain();
  }
}

}  // namespace
}  // namespace foredraft
