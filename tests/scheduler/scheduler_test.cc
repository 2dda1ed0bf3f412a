// What Plan decides, case by case. scheduler_property_test checks the blocks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/scheduler/scheduler_stage.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Refusal {
  const char* name;
  int max_seq_len;
  int prompt_len;
  int max_tokens;
  const char* text;
};

class SchedulerRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(SchedulerRefusal, NamesTheLimit) {
  SchedulerOptions options;
  options.max_seq_len = GetParam().max_seq_len;
  options.groups[0].tokens_per_block = 32;
  options.groups[0].block_count = 129;
  options.max_draft_len = 3;
  options.drafter = {.module_count = 1, .rows_ahead = 3};
  Scheduler scheduler(options);
  Request request{.id = 1, .prompt_ids = std::vector<int32_t>(GetParam().prompt_len)};
  request.max_tokens = GetParam().max_tokens;
  const absl::Status status = scheduler.Submit(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), GetParam().text);
  EXPECT_FALSE(scheduler.HasWork());
}

const Refusal kRefusals[] = {
    {"OverMaxSeqLen", 4000, 3900, 512,
     "max_tokens: prompt 3,900 + max_tokens 512 is 4,412, max_seq_len is 4,000"},
    {"OverThePool", 8192, 3900, 512,
     "max_tokens: prompt 3,900 + max_tokens 512 is 4,412, the KV pool holds 4,064"},
    {"EmptyPrompt", 8192, 0, 5, "prompt: empty, allowed at least 1 token"},
    {"NoTokens", 8192, 5, 0, "max_tokens: 0, allowed at least 1"},
    {"PromptFillsTheContext", 128, 128, 1,
     "prompt: prompt of 128 tokens, max_seq_len is 128 with at least 1 to generate"},
    {"PromptFillsThePool", 8192, 4064, 1,
     "prompt: prompt of 4,064 tokens, the KV pool holds 4,064 with at least 1 to generate"},
};
INSTANTIATE_TEST_SUITE_P(All, SchedulerRefusal, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

TEST(Scheduler, LoadIsToldByRank) {
  SchedulerOptions options;
  options.rank_count = 2;
  options.max_num_tokens = 8;
  Scheduler scheduler(options);
  for (uint64_t id : {1, 2, 3}) {
    Request request{.id = id, .prompt_ids = std::vector<int32_t>(12), .max_tokens = 4};
    ASSERT_TRUE(scheduler.Submit(std::move(request)).ok());
  }
  scheduler.Plan(SteadyTime());  // eight tokens of each rank's first prompt
  const SchedulerLoad load = scheduler.load();
  ASSERT_EQ(load.ranks.size(), 2u);
  EXPECT_EQ(load.ranks[0].running, 2);
  EXPECT_EQ(load.ranks[1].running, 1);
  EXPECT_EQ(load.ranks[0].prefill_tokens, 16);
  EXPECT_EQ(load.ranks[1].prefill_tokens, 4);
  EXPECT_GT(load.ranks[1].blocks_used, 0);
  EXPECT_EQ(load.ranks[0].blocks_used + load.ranks[1].blocks_used, load.blocks_used);
  EXPECT_EQ(load.ranks[0].blocks_free + load.ranks[1].blocks_free, load.blocks_free);
}

TEST(Scheduler, TheLargestRequestFillsThePool) {
  SchedulerOptions options = SmallOptions();
  options.groups[0].block_count = 1 + 8;  // 32 positions
  options.max_draft_len = options.draft_len = 2;
  options.drafter = {.module_count = 1, .rows_ahead = 2};  // 4 rows for drafts, a whole block
  EXPECT_EQ(options.request_size().max_len(), 28);
  Stage stage(options);
  stage.Submit(1, 6, 22);
  stage.Drain();
  EXPECT_FALSE(stage.scheduler.Submit(stage.MakeRequest(2, 6, 23)).ok());
}

TEST(Scheduler, AdmitsHigherPrioritiesFirstThenEarlierArrivals) {
  SchedulerOptions options = SmallOptions();
  options.max_batch_size = 3;
  Stage stage(options);
  for (uint64_t id = 1; id <= 4; ++id) {
    Request request = stage.MakeRequest(id, 5, 5);
    request.priority = id == 4 ? 1 : 0;
    stage.Submit(request);
  }
  EXPECT_THAT(AdmittedSeeds(stage.Turn()), ElementsAre(4, 1, 2));
}

TEST(Scheduler, PlansAnIdleRankToo) {
  SchedulerOptions options = SmallOptions();
  options.rank_count = 8;
  Stage stage(options);
  stage.Submit(1, 5, 5);
  const IterationPlan plan = stage.Turn();
  EXPECT_EQ(plan.ranks.size(), 8u);
  EXPECT_THAT(plan.prefill_rows, ElementsAre(5, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(plan.decode_bucket, 1);
}

TEST(Scheduler, SendsAPromptToTheRankThatHasItsPrefixWhileBalanceAllows) {
  SchedulerOptions options = SmallOptions();
  options.rank_count = 2;
  options.max_num_tokens = 96;
  Stage stage(options);
  stage.Submit(1, 20, 1);  // to rank 0
  stage.Drain();
  Request request = stage.MakeRequest(2, 20, 50);
  request.prompt_ids = stage.MakeRequest(1, 20, 1).prompt_ids;
  for (uint64_t id = 2; id <= 4; ++id) {
    request.id = request.sampling.seed = id;
    stage.Submit(request);
  }
  const IterationPlan plan = stage.Turn();
  EXPECT_THAT(AdmittedSeeds(plan, 0), ElementsAre(2, 3));
  EXPECT_THAT(AdmittedSeeds(plan, 1), ElementsAre(4));  // two ahead would be too far
}

struct Reuse {
  const char* name;
  int reserve;
  float presence_penalty;
  int reused_len;
};

class SchedulerReuse : public testing::TestWithParam<Reuse> {};

TEST_P(SchedulerReuse, TakesFullBlocksAndLeavesTheReserve) {
  SchedulerOptions options = SmallOptions();
  options.drafter.reuse_reserve = GetParam().reserve;
  Stage stage(options);
  stage.Submit(1, 20, 1);
  stage.Drain();
  stage.scheduler.TakeUpdates();
  Request request = stage.MakeRequest(2, 0, 3);
  request.prompt_ids = stage.MakeRequest(1, 16, 1).prompt_ids;
  request.sampling.presence_penalty = GetParam().presence_penalty;
  stage.now += std::chrono::seconds(2);
  stage.Submit(request);
  const IterationPlan plan = stage.Turn();
  const SlotAdmission& admission = plan.ranks[0].admissions.at(0);
  const BlockTableDelta& delta = plan.ranks[0].block_table_deltas.at(0);
  EXPECT_EQ(admission.reused_len, GetParam().reused_len);
  EXPECT_EQ(admission.boundary_block, delta.block_ids.at(GetParam().reused_len / 4 - 1));
  EXPECT_EQ(admission.reused_ids.size(), GetParam().presence_penalty == 0 ? 0 : GetParam().reused_len);
  EXPECT_EQ(plan.ranks[0].prefill_chunks.at(0).first_position, GetParam().reused_len);
  const std::vector<RequestUpdate> updates = stage.scheduler.TakeUpdates();
  EXPECT_EQ(updates.at(0).cached_tokens, GetParam().reused_len);
  EXPECT_EQ(updates.at(0).queue_seconds, 2.0);
  EXPECT_EQ(stage.scheduler.load().prefix_hit_tokens, static_cast<uint64_t>(GetParam().reused_len));
  EXPECT_EQ(stage.scheduler.load().prefix_queried_tokens, 36u);
}

const Reuse kReuses[] = {
    {"Eagle", 1, 0, 12},
    {"EaglePenalties", 1, 0.5, 12},
    {"VanillaFour", 4, 0, 12},
    {"VanillaFive", 5, 0, 8},
};
INSTANTIATE_TEST_SUITE_P(All, SchedulerReuse, testing::ValuesIn(kReuses),
                         [](const auto& info) { return info.param.name; });

// Three sequences whose prompts fit the pool together, but whose outputs do not.
class SchedulerPreemption : public testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = SmallOptions();
    options.groups[0].block_count = 25;
    options.host_frame_count = 100;
    options.max_num_tokens = 96;
    return options;
  }
  // Runs iterations until a plan swaps a sequence out.
  IterationPlan TurnUntilSwapOut() {
    for (int turn = 0; turn < 200; ++turn) {
      IterationPlan plan = stage_.Turn();
      if (!plan.ranks[0].swaps_out.empty()) return plan;
    }
    ADD_FAILURE() << "no swap";
    return {};
  }
  int SlotOf(const IterationPlan& plan, uint64_t seed) {
    for (const SlotAdmission& admission : plan.ranks[0].admissions) {
      if (admission.sampling.seed == seed) return admission.slot;
    }
    return -1;
  }

  Stage stage_{Options()};
};

TEST_F(SchedulerPreemption, TakesTheYoungestOfTheLowestPriority) {
  stage_.Submit(1, 8, 60);
  stage_.Submit(2, 8, 60);
  const int victim = SlotOf(stage_.Turn(), 2);
  Request urgent = stage_.MakeRequest(3, 8, 60);  // younger, but of a higher priority
  urgent.priority = 1;
  stage_.Submit(urgent);
  const IterationPlan plan = TurnUntilSwapOut();
  ASSERT_EQ(plan.ranks[0].swaps_out.size(), 1u);
  EXPECT_EQ(plan.ranks[0].swaps_out[0].slot, victim);
  EXPECT_EQ(stage_.scheduler.load().swapped, 1);
  stage_.Drain();
}

TEST_F(SchedulerPreemption, SwapsInBeforeItAdmits) {
  for (uint64_t id = 1; id <= 3; ++id) stage_.Submit(id, 8, 60);
  stage_.Turn();
  TurnUntilSwapOut();
  Request urgent = stage_.MakeRequest(4, 1, 1);
  urgent.priority = 9;
  stage_.Submit(urgent);
  for (;;) {
    const IterationPlan plan = stage_.Turn();
    if (!plan.ranks[0].swaps_in.empty()) break;
    ASSERT_THAT(plan.ranks[0].admissions, IsEmpty());
  }
  stage_.Drain();
}

// Otherwise the same blocks would be swapped out and in repeatedly.
TEST(Scheduler, SwapsInNothingThatSoonForcesASwapOut) {
  int swaps_in = 0;
  for (int round = 0; round < 400; ++round) {
    SchedulerOptions options = SmallOptions();
    options.groups[0].block_count = 25;
    options.host_frame_count = 100;
    options.max_num_tokens = 96;
    Stage stage(options);
    stage.Submit(1, 60 + round % 16, 20);
    stage.Submit(2, 4, 1 + round / 16);  // ends after a varying time and frees its blocks
    stage.Submit(3, 4, 50);
    int quiet_turns = 0;
    while (stage.scheduler.HasWork()) {
      const IterationPlan plan = stage.Turn();
      if (quiet_turns-- > 0) {
        ASSERT_THAT(plan.ranks[0].swaps_out, IsEmpty()) << round;
      }
      if (plan.ranks[0].swaps_in.empty()) continue;
      quiet_turns = options.groups[0].tokens_per_block;
      ++swaps_in;
    }
  }
  EXPECT_GT(swaps_in, 20);
}

TEST_F(SchedulerPreemption, EndsASwappedRequestByDroppingItsImage) {
  for (uint64_t id = 1; id <= 3; ++id) stage_.Submit(id, 8, 60);
  stage_.Turn();
  const uint64_t image = TurnUntilSwapOut().ranks[0].swaps_out.at(0).image_id;
  stage_.scheduler.Cancel(3, FinishReason::kCancelled);
  EXPECT_EQ(stage_.scheduler.load().swapped, 0);
  EXPECT_THAT(stage_.Turn().ranks[0].dropped_images, ElementsAre(image));
  stage_.Drain();
}

TEST(Scheduler, WaitsForFullRoomWhenNothingMayBeSwapped) {
  SchedulerOptions options = SmallOptions();
  options.groups[0].block_count = 25;
  Stage stage(options);
  for (uint64_t id = 1; id <= 3; ++id) stage.Submit(id, 8, 40);  // 12 blocks each in the end
  EXPECT_EQ(AdmittedSeeds(stage.Turn()).size(), 2u);
  stage.Drain();
  EXPECT_EQ(stage.scheduler.load().preemptions, 0u);
}

TEST(Scheduler, ReleasesAnEndedSequenceInTheNextPlanAndReusesTheSlotThere) {
  SchedulerOptions options = SmallOptions();
  options.max_batch_size = 1;
  Stage stage(options);
  stage.Submit(1, 5, 50);
  stage.Submit(2, 5, 50);
  stage.Launch();                                                   // 1
  EXPECT_THAT(stage.Launch().ranks[0].live_slots, ElementsAre(0));  // 2
  stage.Commit();                                                   // 1
  stage.scheduler.Cancel(1, FinishReason::kCancelled);              // while 2 is in flight
  EXPECT_EQ(stage.scheduler.load().slots_used, 0);
  const IterationPlan plan = stage.Launch();  // 3
  EXPECT_THAT(plan.ranks[0].releases, ElementsAre(0));
  EXPECT_THAT(AdmittedSeeds(plan), ElementsAre(2));
  EXPECT_EQ(plan.ranks[0].admissions[0].slot, 0);
  stage.Commit();  // 2
  EXPECT_EQ(stage.scheduler.load().wasted_steps, 1u);
  stage.Commit();  // 3
  stage.Drain();
}

TEST(Scheduler, PlansNoStepForASequenceThatMustHaveEnded) {
  Stage stage(SmallOptions());
  stage.Submit(1, 5, 2);  // the prefill's token and one step's
  stage.Launch();
  EXPECT_TRUE(IsEmpty(stage.Launch()));
  stage.Commit();
  stage.Drain();
  EXPECT_EQ(stage.scheduler.load().wasted_steps, 0u);
}

TEST(Scheduler, EndsQueuedRequestsWithAnUpdateWithoutTokens) {
  Stage stage(SmallOptions());
  stage.Submit(1, 5, 5);
  Request late = stage.MakeRequest(2, 5, 5);
  late.deadline = stage.now + std::chrono::seconds(1);
  stage.Submit(late);
  stage.scheduler.Cancel(1, FinishReason::kCancelled);
  stage.now += std::chrono::seconds(1);
  EXPECT_TRUE(IsEmpty(stage.Turn()));
  const std::vector<RequestUpdate> updates = stage.scheduler.TakeUpdates();
  ASSERT_EQ(updates.size(), 2u);
  EXPECT_EQ(updates[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(updates[1].finish, FinishReason::kDeadline);
  EXPECT_THAT(updates[1].token_ids, IsEmpty());
  EXPECT_FALSE(stage.scheduler.HasWork());
}

// The tokens before the row that is not usable are delivered; with none, in a first step, only the error is.
TEST(Scheduler, EndsARequestWhoseLogitsAreNotUsable) {
  for (const bool has_tokens : {true, false}) {
    Scheduler scheduler(SmallOptions());
    Request request{.id = 1, .max_tokens = 20};
    request.prompt_ids = {1, 2, 3};
    ASSERT_TRUE(scheduler.Submit(request).ok());
    const IterationPlan plan = scheduler.Plan({});
    ASSERT_EQ(plan.ranks[0].live_slots.size(), 1u);
    SlotResult slot{.slot = plan.ranks[0].live_slots[0], .length = 3, .finished = true};
    slot.nonfinite_logits = true;
    if (has_tokens) slot.token_ids = {7};
    slot.first_token = has_tokens;
    scheduler.Commit({{.number = plan.number, .slots = {slot}}});
    scheduler.CheckInvariants();
    const std::vector<RequestUpdate> updates = scheduler.TakeUpdates();
    ASSERT_EQ(updates.size(), has_tokens ? 2u : 1u);
    EXPECT_EQ(updates[0].token_ids, slot.token_ids);
    EXPECT_EQ(updates.back().finish, FinishReason::kError);
    EXPECT_EQ(updates.back().error.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(updates.back().error.message()), testing::HasSubstr("NaN or infinite"));
    EXPECT_EQ(scheduler.load().nonfinite_logits, 1u);
    EXPECT_EQ(scheduler.load().running, 0);
  }
}

// With an ageing of 10 s a priority higher by one is worth 10 s.
TEST(Scheduler, AnOldRequestGoesBeforeAYoungOneOfAHigherPriority) {
  SchedulerOptions options = SmallOptions();
  options.max_batch_size = 1;
  options.priority_ageing = std::chrono::seconds(10);
  Stage stage(options);
  const auto submit = [&](uint64_t id, int32_t priority) {
    Request request = stage.MakeRequest(id, 5, 1);
    request.priority = priority;
    stage.Submit(request);
  };
  submit(1, 0);
  submit(2, 0);
  stage.now += std::chrono::seconds(9);
  submit(3, 1);  // before the one that arrived 9 s earlier
  stage.now += std::chrono::seconds(2);
  submit(4, 1);              // after the ones that arrived 11 s earlier
  submit(5, kMaxPriority);   // before all
  submit(6, -kMaxPriority);  // after all
  std::vector<uint64_t> order;
  while (stage.scheduler.HasWork()) {
    for (const uint64_t seed : AdmittedSeeds(stage.Turn())) order.push_back(seed);
  }
  EXPECT_THAT(order, ElementsAre(5, 3, 1, 2, 4, 6));
}

// The twelfth request, of another client, is admitted after one of the first client's eleven.
TEST(Scheduler, ClientsTakeTurns) {
  SchedulerOptions options = SmallOptions();
  options.max_batch_size = 1;
  Stage stage(options);
  for (uint64_t id = 1; id <= 12; ++id) {
    Request request = stage.MakeRequest(id, 5, 1);
    request.client = id == 12 ? 8 : 7;
    stage.Submit(request);
  }
  std::vector<uint64_t> order;
  while (stage.scheduler.HasWork()) {
    for (const uint64_t seed : AdmittedSeeds(stage.Turn())) order.push_back(seed);
  }
  EXPECT_THAT(order, ElementsAre(1, 12, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
}

TEST(Scheduler, EndsAllInOrderOfArrivalWithTheError) {
  Stage stage(SmallOptions());
  for (uint64_t id = 9; id >= 5; --id) stage.Submit(id, 5, 5);
  stage.scheduler.EndAll(FinishReason::kError, absl::UnavailableError("rank 0 lost"));
  std::vector<uint64_t> ids;
  for (const RequestUpdate& update : stage.scheduler.TakeUpdates()) {
    ids.push_back(update.request_id);
    EXPECT_EQ(update.error.message(), "rank 0 lost");
  }
  EXPECT_THAT(ids, ElementsAre(9, 8, 7, 6, 5));
}

TEST(IterationPlan, PrintsOneLinePerRank) {
  SchedulerOptions options = SmallOptions();
  options.rank_count = 2;
  Stage stage(options);
  stage.Submit(1, 5, 5);
  EXPECT_EQ(
      stage.Turn().DebugString(),
      "plan number 1 decode_bucket 1 argmax 1 prefill_rows: 5 0 ended_prompts: 1 0, rank 0: admissions { "
      "sampling { top_p 1 repetition_penalty 1 seed 1 } logprob_count -1 thinking { begin -1 end -1 } "
      "prompt_len 5 "
      "length_limit 9 boundary_block -1 } block_table_deltas { block_ids: 1 2 } prefill_chunks { "
      "token_ids [5] last 1 } live_slots: 0\n"
      "plan number 1 decode_bucket 1 argmax 1 prefill_rows: 5 0 ended_prompts: 1 0, rank 1:");
  stage.Drain();
}

}  // namespace
}  // namespace foredraft
