// When Plan computes prompts, and how much of them at a time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <numeric>
#include <vector>

#include "tests/scheduler/scheduler_stage.h"

namespace foredraft {
namespace {

using testing::ElementsAre;

TEST(Scheduler, PrefillsAtOnceWhenNothingDecodes) {
  Stage stage(SmallOptions());
  stage.Submit(1, 5, 20);
  EXPECT_THAT(stage.Turn().prefill_rows, ElementsAre(5));
}

TEST(Scheduler, DelaysAPromptWhileDecodesRun) {
  Stage stage(SmallOptions());
  stage.Submit(1, 5, 20);
  stage.Turn();
  stage.Submit(2, 7, 20);
  for (int waited = 0; waited < 3; ++waited) EXPECT_THAT(stage.Turn().prefill_rows, ElementsAre(0)) << waited;
  EXPECT_THAT(stage.Turn().prefill_rows, ElementsAre(7));
}

TEST(Scheduler, PrefillsAtOnceWhenPromptsFillTheBudget) {
  Stage stage(SmallOptions());
  stage.Submit(1, 5, 20);
  stage.Turn();
  stage.Submit(2, 20, 20);
  stage.Submit(3, 20, 20);
  const IterationPlan plan = stage.Turn();
  EXPECT_THAT(plan.prefill_rows, ElementsAre(32));
  ASSERT_EQ(plan.ranks[0].prefill_chunks.size(), 2u);
  EXPECT_TRUE(plan.ranks[0].prefill_chunks[0].last);
  EXPECT_FALSE(plan.ranks[0].prefill_chunks[1].last);
}

// A machine that computes 100 tokens a second, from the first iteration on, with a plan in flight.
TEST(Scheduler, ChunksTakeNoLongerThanTheyMay) {
  SchedulerOptions options;
  options.max_seq_len = 8192;
  options.groups[0].block_count = 1000;
  options.prefill_seconds = 7.5;
  Scheduler scheduler(options);
  ASSERT_TRUE(scheduler.Submit({.id = 1, .prompt_ids = std::vector<int32_t>(6000), .max_tokens = 1}).ok());
  std::deque<IterationPlan> in_flight;
  std::vector<int> rows;
  while (rows.empty() || std::accumulate(rows.begin(), rows.end(), 0) < 6000) {
    in_flight.push_back(scheduler.Plan(SteadyTime()));
    rows.push_back(in_flight.back().prefill_rows[0]);
    ASSERT_GT(rows.back(), 0);
    if (in_flight.size() == 1) continue;
    RankResult result{.number = in_flight.front().number};
    result.prefill_seconds = in_flight.front().prefill_rows[0] / 100.0;
    scheduler.Commit({result});
    in_flight.pop_front();
  }
  EXPECT_THAT(rows, testing::Each(testing::Le(750)));
  EXPECT_LE(rows.size(), 16u) << "at least half as long as they may be, once the machine is known";
}

// The same machine: chunks are short while a stream decodes, and long again once it has ended.
TEST(Scheduler, APromptHoldsUpStreamsNoLongerThanItMay) {
  SchedulerOptions options;
  options.max_seq_len = 8192;
  options.groups[0].block_count = 1000;
  options.batching_wait_iters = 0;
  options.prefill_seconds = 7.5;
  options.decode_pause_seconds = 1.5;
  Stage stage(options);
  stage.token_seconds = 0.01;
  stage.Submit(1, 400, 12);
  while (stage.Turn().decode_bucket == 0) {
  }
  stage.Submit(2, 4000, 1);
  std::vector<int> beside_stream, alone;
  while (stage.scheduler.HasWork()) {
    const IterationPlan plan = stage.Turn();
    if (plan.prefill_rows[0] == 0) continue;
    const bool ends = plan.ended_prompts[0] > 0;
    (plan.decode_bucket > 0 && !ends ? beside_stream : alone).push_back(plan.prefill_rows[0]);
  }
  EXPECT_GE(beside_stream.size(), 10u);
  EXPECT_THAT(beside_stream, testing::Each(testing::Le(150)));
  EXPECT_THAT(beside_stream, testing::Contains(128));
  EXPECT_THAT(alone, testing::Each(testing::Le(750)));
  EXPECT_THAT(alone, testing::Contains(testing::Ge(512)));
}

TEST(Scheduler, NeverCutsAPromptWithoutChunkedPrefill) {
  SchedulerOptions options = SmallOptions();
  options.enable_chunked_prefill = false;
  options.max_num_tokens = options.max_seq_len;
  Stage stage(options);
  stage.Submit(1, 60, 20);
  stage.Submit(2, 60, 20);
  EXPECT_THAT(stage.Turn().prefill_rows, ElementsAre(60));
}

}  // namespace
}  // namespace foredraft
