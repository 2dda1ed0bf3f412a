// Random runs through Plan and Commit under every kind of setting, on ranks that check each access
// (fake_rank.h). A failure prints setting, seed and the last plans.

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>

#include "base/log.h"
#include "tests/scheduler/scheduler_run.h"

namespace foredraft {
namespace {

#ifndef FOREDRAFT_PROPERTY_ITERATIONS
#define FOREDRAFT_PROPERTY_ITERATIONS 10000
#endif
constexpr int kIterations = FOREDRAFT_PROPERTY_ITERATIONS;  // per setting
constexpr int kRequestsPerCourse = 40;

const RunSetting kSettings[] = {
    {.name = "NoMtp", .max_draft_len = 0},
    {.name = "NoMtpSync", .overlap = false, .max_draft_len = 0},
    {.name = "NoMtpSwaps", .blocks = 33, .host_blocks = 96, .max_draft_len = 0, .expect_swaps = true},
    {.name = "Eagle1", .max_draft_len = 1},
    {.name = "Eagle3", .blocks = 65},
    {.name = "Eagle3Sync", .overlap = false},
    {.name = "Eagle7", .blocks = 65, .max_draft_len = 7},
    {.name = "Eagle7OneTokenBlocks", .blocks = 150, .tokens_per_block = 1, .max_draft_len = 7},
    {.name = "Eagle3FixedK", .vary_speculation = false},
    {.name = "Swaps", .slots = 6, .blocks = 33, .host_blocks = 200, .expect_swaps = true},
    {.name = "SwapsSync",
     .overlap = false,
     .slots = 6,
     .blocks = 33,
     .host_blocks = 200,
     .expect_swaps = true},
    {.name = "SwapsOneTokenBlocks",
     .slots = 6,
     .blocks = 125,
     .tokens_per_block = 1,
     .host_blocks = 700,
     .max_draft_len = 7,
     .expect_swaps = true},
    {.name = "SwapsBigBlocks",
     .slots = 8,
     .blocks = 9,
     .tokens_per_block = 16,
     .host_blocks = 64,
     .max_draft_len = 5,
     .expect_swaps = true},
    {.name = "SmallHostStore", .slots = 6, .blocks = 45, .host_blocks = 30, .expect_swaps = true},
    {.name = "LargeSlotState",
     .slots = 6,
     .blocks = 33,
     .host_blocks = 100,
     .host_image_blocks = 7,
     .expect_swaps = true},
    {.name = "NoReuse", .slots = 6, .host_blocks = 100, .reuse = false, .expect_swaps = true},
    {.name = "Vanilla3", .slots = 6, .blocks = 49, .host_blocks = 200, .vanilla = true, .expect_swaps = true},
    {.name = "Vanilla7Sync",
     .overlap = false,
     .blocks = 40,
     .host_blocks = 200,
     .max_draft_len = 7,
     .vanilla = true,
     .expect_swaps = true},
    {.name = "WholePrompts", .chunked = false},
    {.name = "TinyBudget", .budget = 3, .batching_wait_iters = 0},
    {.name = "PatientPrefill", .budget = 200, .batching_wait_iters = 20},
    {.name = "TwoRanksSwaps", .ranks = 2, .slots = 5, .host_blocks = 200, .expect_swaps = true},
    {.name = "EightRanks", .ranks = 8, .slots = 3, .blocks = 29, .host_blocks = 100},
    {.name = "EightRanksSync", .ranks = 8, .overlap = false, .slots = 3, .blocks = 29},
    {.name = "Losses", .loss_percent = 3},
    {.name = "LossesNoMtpSync", .overlap = false, .max_draft_len = 0, .loss_percent = 3},
    {.name = "LossesVanilla", .vanilla = true, .loss_percent = 3},
    {.name = "LossesSwaps",
     .slots = 6,
     .blocks = 33,
     .host_blocks = 200,
     .loss_percent = 3,
     .expect_swaps = true},
    {.name = "LossesTwoRanks",
     .ranks = 2,
     .slots = 5,
     .host_blocks = 200,
     .loss_percent = 3,
     .expect_swaps = true},
    {.name = "ManyLosses", .ranks = 2, .loss_percent = 30},
};

class SchedulerProperty : public testing::TestWithParam<RunSetting> {};

// A CHECK that fails during a run must name the run.
const SchedulerRun* current_run = nullptr;

void PrintCourse(LogLevel, std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  if (current_run == nullptr) return;
  std::fprintf(stderr, "%s\n", current_run->name().c_str());
  for (const std::string& plan : current_run->plan_log()) std::fprintf(stderr, "%s\n", plan.c_str());
}

TEST_P(SchedulerProperty, TokensAndBlocksAreRight) {
  const RunSetting& setting = GetParam();
  InstallLogSink(PrintCourse);
  RunTotals totals;
  for (uint64_t seed = 1; totals.iterations < kIterations; ++seed) {
    SchedulerRun run(setting, seed);
    current_run = &run;
    const std::string failure = run.Run(kRequestsPerCourse, &totals);
    current_run = nullptr;
    ASSERT_EQ(failure, "");
  }
  InstallLogSink(nullptr);
  std::printf(
      "%s: %d iterations, %d requests, %d to their end, %d cancelled, %d expired, %lu preemptions, "
      "%lu images dropped, %lu hit tokens, %lu wasted steps, %lu rewound blocks, %d relaxed drafts, "
      "%d changes of K, %lu resumed, %lu replayed tokens, %d poisoned\n",
      setting.name, totals.iterations, totals.requests, totals.stopped, totals.cancelled, totals.expired,
      totals.preemptions, totals.dropped_images, totals.hit_tokens, totals.wasted_steps,
      totals.rewound_blocks, totals.relaxed_drafts, totals.draft_len_changes, totals.resumed,
      totals.replayed_tokens, totals.poison);
  EXPECT_GT(totals.stopped, 100);
  EXPECT_GT(totals.cancelled, 0);
  EXPECT_GT(totals.expired, 0);
  if (setting.expect_swaps) {
    EXPECT_GT(totals.preemptions, 50u);
    EXPECT_GT(totals.dropped_images, 0u);
  }
  if (setting.host_blocks == 0) {
    EXPECT_EQ(totals.preemptions, 0u);
  }
  EXPECT_EQ(totals.hit_tokens > 0, setting.reuse);
  if (setting.overlap) {
    EXPECT_GT(totals.wasted_steps, 0u);
  }
  if (setting.max_draft_len > 0) {
    EXPECT_GT(totals.rewound_blocks, 0u);
  }
  EXPECT_GT(totals.strict_admissions, 0);
  EXPECT_EQ(totals.resumed > 100 && totals.replayed_tokens > 1000, setting.loss_percent > 0);
  if (setting.loss_percent == 0) {
    EXPECT_EQ(totals.poison, 0);
  } else if (setting.loss_percent > 10) {
    EXPECT_GT(totals.poison, 0);
  }
  const bool reloads = setting.max_draft_len > 0 && setting.vary_speculation;
  EXPECT_EQ(totals.relaxed_drafts > 0, reloads && setting.loss_percent == 0);
  EXPECT_EQ(totals.draft_len_changes > 10, setting.max_draft_len > 0);  // request caps change K too
}

std::string NameOf(const testing::TestParamInfo<RunSetting>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(All, SchedulerProperty, testing::ValuesIn(kSettings), NameOf);

TEST_P(SchedulerProperty, EqualInputsGiveEqualPlans) {
  RunTotals totals;
  SchedulerRun first(GetParam(), 7);
  SchedulerRun second(GetParam(), 7);
  EXPECT_EQ(first.Run(kRequestsPerCourse, &totals), "");
  EXPECT_EQ(second.Run(kRequestsPerCourse, &totals), "");
  EXPECT_EQ(first.plans_digest(), second.plans_digest());
}

// Random settings. The seed alone repeats one.
RunSetting RandomSetting(uint64_t seed) {
  std::mt19937_64 random(seed);
  auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  RunSetting setting{.name = "RandomSetting"};
  setting.ranks = 1 << pick(0, 2);
  setting.overlap = pick(0, 3) > 0;
  setting.slots = pick(1, 9);
  setting.tokens_per_block = pick(1, 20);
  setting.max_seq_len = pick(8, 120);
  setting.max_draft_len = pick(0, 7);
  const int largest =
      (setting.max_seq_len + 2 * setting.max_draft_len + setting.tokens_per_block) / setting.tokens_per_block;
  setting.blocks = 1 + largest * pick(100, 400) / 100;
  setting.host_blocks = largest * pick(0, 1) * pick(1, 8);
  setting.host_image_blocks = pick(0, 4);
  setting.vanilla = pick(0, 1) == 1;
  setting.reuse = pick(0, 3) > 0;
  setting.chunked = pick(0, 3) > 0;
  setting.budget = pick(1, 100);
  setting.batching_wait_iters = pick(0, 12);
  setting.vary_speculation = pick(0, 1) == 1;
  setting.loss_percent = pick(0, 2) == 0 ? pick(1, 5) : 0;
  return setting;
}

TEST(SchedulerRandomSettings, TokensAndBlocksAreRight) {
  InstallLogSink(PrintCourse);
  RunTotals totals;
  for (uint64_t seed = 1; totals.iterations < 2 * kIterations; ++seed) {
    SchedulerRun run(RandomSetting(seed), seed);
    current_run = &run;
    const std::string failure = run.Run(kRequestsPerCourse, &totals);
    current_run = nullptr;
    ASSERT_EQ(failure, "");
  }
  InstallLogSink(nullptr);
}

// The bounds are tight: ranks that reach one position further than docs/speculation.md says report faults.
struct Excess {
  const char* name;
  int extra_reach;
  int extra_live;
  const char* fault;
};

class SchedulerBounds : public testing::TestWithParam<Excess> {};

TEST_P(SchedulerBounds, AreTight) {
  const RunSetting setting{
      .name = "Tight", .slots = 6, .blocks = 150, .tokens_per_block = 1, .host_blocks = 400};
  std::string failure;
  for (uint64_t seed = 1; seed <= 20 && failure.empty(); ++seed) {
    RunTotals totals;
    SchedulerRun run(setting, seed, GetParam().extra_reach, GetParam().extra_live);
    failure = run.Run(kRequestsPerCourse, &totals);
  }
  EXPECT_NE(failure.find(GetParam().fault), std::string::npos) << failure;
}

const Excess kExcesses[] = {
    {"Reach", 1, 0, "which it does not own"},
    {"LiveRows", 0, 1, "lost live MTP row"},
};
INSTANTIATE_TEST_SUITE_P(All, SchedulerBounds, testing::ValuesIn(kExcesses),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foredraft
