// Random runs through Plan and Commit under every kind of setting, on ranks that check each access
// (fake_rank.h). A failure prints setting, seed and the last plans.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/scheduler/scheduler_run.h"

namespace foredraft {
namespace {

#ifndef FOREDRAFT_PROPERTY_ITERATIONS
#define FOREDRAFT_PROPERTY_ITERATIONS 10000
#endif
constexpr int kIterations = FOREDRAFT_PROPERTY_ITERATIONS;  // per setting
constexpr int kRequestsPerCourse = 40;

// Windows as DeepSeek-V4-Flash has them, over a history of 128-token blocks; and small ones. block_count:
// more than a single sequence needs.
std::vector<CacheGroupShape> FlashWindows(int more_blocks) {
  return {{.tokens_per_block = 32, .lookback = 127, .block_count = more_blocks, .host_frames_per_block = 5},
          {.tokens_per_block = 8, .lookback = 7, .block_count = more_blocks, .host_frames_per_block = 2}};
}
std::vector<CacheGroupShape> SmallWindows(int more_blocks) {
  return {{.tokens_per_block = 2, .lookback = 7, .block_count = more_blocks, .host_frames_per_block = 2},
          {.tokens_per_block = 1, .lookback = 3, .block_count = more_blocks}};
}

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
    {.name = "FlashWindows",
     .blocks = 25,
     .tokens_per_block = 128,
     .windows = FlashWindows(20),
     .max_seq_len = 700,
     .max_draft_len = 1,
     .budget = 300},
    {.name = "FlashWindowsSwaps",
     .slots = 12,
     .blocks = 8,
     .tokens_per_block = 128,
     .host_blocks = 2000,
     .host_image_blocks = 3,
     .windows = FlashWindows(60),
     .max_seq_len = 700,
     .max_draft_len = 7,
     .budget = 150,
     .expect_swaps = true,
     .least_swaps = 20},  // large blocks are seldom short
    {.name = "WindowsRoomy", .blocks = 65, .windows = SmallWindows(100)},
    {.name = "WindowsTight", .slots = 6, .blocks = 65, .windows = SmallWindows(0)},
    {.name = "WindowsSync", .overlap = false, .windows = SmallWindows(10)},
    {.name = "WindowsNoMtp", .windows = SmallWindows(20), .max_draft_len = 0},
    {.name = "WindowsNoReuse", .windows = SmallWindows(20), .reuse = false},
    {.name = "WindowsTinyBudget",
     .blocks = 65,
     .windows = SmallWindows(40),
     .budget = 3,
     .batching_wait_iters = 0},
    {.name = "WindowsWholePrompts", .windows = SmallWindows(20), .chunked = false},
    {.name = "WindowsSwaps",
     .slots = 6,
     .blocks = 33,
     .host_blocks = 400,
     .host_image_blocks = 2,
     .windows = SmallWindows(40),
     .expect_swaps = true},
    {.name = "WindowsShort",  // the windows' pools force the swaps
     .slots = 8,
     .blocks = 200,
     .host_blocks = 900,
     .windows = SmallWindows(20),
     .max_draft_len = 7,
     .expect_swaps = true},
    {.name = "WindowsLosses",
     .ranks = 2,
     .slots = 5,
     .host_blocks = 400,
     .windows = SmallWindows(30),
     .loss_percent = 3,
     .expect_swaps = true},
    {.name = "Constrained", .blocks = 65, .constrained_percent = 60},
    {.name = "ConstrainedSync", .overlap = false, .blocks = 65, .constrained_percent = 60},
    {.name = "ConstrainedNoMtp", .blocks = 65, .max_draft_len = 0, .constrained_percent = 60},
    {.name = "ConstrainedOneTokenBlocks",
     .blocks = 150,
     .tokens_per_block = 1,
     .max_draft_len = 7,
     .constrained_percent = 90},
    {.name = "ConstrainedVanillaSwaps",
     .slots = 6,
     .blocks = 49,
     .host_blocks = 200,
     .vanilla = true,
     .constrained_percent = 50,
     .expect_swaps = true,
     .least_swaps = 20},
    {.name = "ConstrainedEightRanks",
     .ranks = 8,
     .slots = 3,
     .blocks = 29,
     .host_blocks = 100,
     .constrained_percent = 30},
    {.name = "ConstrainedLosses", .ranks = 2, .blocks = 65, .loss_percent = 3, .constrained_percent = 60},
    {.name = "ConstrainedLate", .blocks = 65, .constrained_percent = 60, .late_percent = 50},
    {.name = "ConstrainedLateSync",
     .overlap = false,
     .blocks = 65,
     .max_draft_len = 7,
     .constrained_percent = 90,
     .late_percent = 80},
    {.name = "ConstrainedLateLosses",
     .ranks = 2,
     .blocks = 65,
     .loss_percent = 3,
     .constrained_percent = 60,
     .late_percent = 40},
    {.name = "ConstrainedLateSwaps",
     .slots = 6,
     .blocks = 33,
     .host_blocks = 400,
     .host_image_blocks = 2,
     .windows = SmallWindows(40),
     .max_draft_len = 7,
     .constrained_percent = 60,
     .late_percent = 30,
     .expect_swaps = true,
     .least_swaps = 20},
    {.name = "ConstrainedWindowsTight",
     .slots = 6,
     .blocks = 65,
     .windows = SmallWindows(0),
     .constrained_percent = 60},
    {.name = "ConstrainedWindowsSwaps",
     .slots = 6,
     .blocks = 33,
     .host_blocks = 400,
     .host_image_blocks = 2,
     .windows = SmallWindows(40),
     .max_draft_len = 7,
     .constrained_percent = 60,
     .expect_swaps = true,
     .least_swaps = 20},
    {.name = "ConstrainedWindowsLosses",
     .ranks = 2,
     .slots = 5,
     .host_blocks = 400,
     .windows = SmallWindows(30),
     .loss_percent = 3,
     .constrained_percent = 60,
     .expect_swaps = true,
     .least_swaps = 10},
    {.name = "Generated", .blocks = 65, .reuse_generated = true},
    {.name = "GeneratedNoMtpSync",
     .overlap = false,
     .blocks = 65,
     .max_draft_len = 0,
     .reuse_generated = true},
    {.name = "GeneratedOneTokenBlocks",
     .blocks = 150,
     .tokens_per_block = 1,
     .max_draft_len = 7,
     .reuse_generated = true},
    {.name = "GeneratedTwoRanksSwaps",
     .ranks = 2,
     .slots = 5,
     .host_blocks = 200,
     .reuse_generated = true,
     .expect_swaps = true},
    {.name = "GeneratedVanillaSwaps",
     .slots = 6,
     .blocks = 49,
     .host_blocks = 200,
     .vanilla = true,
     .reuse_generated = true,
     .expect_swaps = true,
     .least_swaps = 20},
    {.name = "GeneratedLosses", .ranks = 2, .blocks = 65, .reuse_generated = true, .loss_percent = 3},
    {.name = "GeneratedWindows", .blocks = 65, .windows = SmallWindows(100), .reuse_generated = true},
    {.name = "GeneratedWindowsTight",
     .slots = 6,
     .blocks = 65,
     .windows = SmallWindows(0),
     .reuse_generated = true},
    {.name = "GeneratedFlashWindows",
     .blocks = 40,
     .tokens_per_block = 128,
     .windows = FlashWindows(60),
     .max_seq_len = 900,
     .max_draft_len = 1,
     .reuse_generated = true,
     .budget = 300},
    {.name = "GeneratedWindowsSwapsLosses",
     .slots = 6,
     .blocks = 33,
     .host_blocks = 400,
     .host_image_blocks = 2,
     .windows = SmallWindows(40),
     .reuse_generated = true,
     .loss_percent = 3,
     .expect_swaps = true},
    {.name = "GeneratedConstrained",
     .blocks = 65,
     .windows = SmallWindows(40),
     .reuse_generated = true,
     .constrained_percent = 60},
};

class SchedulerProperty : public testing::TestWithParam<RunSetting> {};

// A CHECK that fails during a run must name the run.
const SchedulerRun* current_run = nullptr;

void PrintCourse(LogLevel, std::string_view line, const LogFields&) {
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
  if (setting.constrained_percent > 0) {
    std::printf(
        "%s: %d constrained to their end, %lu held slots, %lu masks, %lu drafts outside, %lu forced\n",
        setting.name, totals.constrained, totals.held_slots, totals.masks, totals.drafts_outside_grammar,
        totals.forced_drafts);
    EXPECT_GT(totals.constrained, 50);
    EXPECT_GT(totals.held_slots, 100u);
    EXPECT_GT(totals.masks, 500u);
    EXPECT_EQ(totals.drafts_outside_grammar > 20, setting.max_draft_len > 0);
    EXPECT_EQ(totals.forced_drafts > 5, setting.max_draft_len > 0);
  }
  EXPECT_GT(totals.stopped, 100);
  EXPECT_GT(totals.cancelled, 0);
  EXPECT_GT(totals.expired, 0);
  if (setting.expect_swaps) {
    EXPECT_GT(totals.preemptions, setting.least_swaps);
    EXPECT_GT(totals.dropped_images, 0u);
  }
  if (setting.host_blocks == 0) {
    EXPECT_EQ(totals.preemptions, 0u);
  }
  EXPECT_EQ(totals.hit_tokens > 0, setting.reuse);
  EXPECT_EQ(totals.generated_hits > 100, setting.reuse_generated) << totals.generated_hits;
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
  setting.reuse_generated = setting.reuse && pick(0, 1) == 1;
  setting.chunked = pick(0, 3) > 0;
  setting.budget = pick(1, 100);
  setting.batching_wait_iters = pick(0, 12);
  setting.vary_speculation = pick(0, 1) == 1;
  setting.loss_percent = pick(0, 2) == 0 ? pick(1, 5) : 0;
  const int window_count = setting.vanilla ? 0 : pick(0, 2);
  for (int i = 0; i < window_count; ++i) {
    CacheGroupShape window{
        .lookback = pick(1, 40), .block_count = pick(0, 60), .host_frames_per_block = pick(1, 4)};
    do window.tokens_per_block = pick(1, setting.tokens_per_block);
    while (setting.tokens_per_block % window.tokens_per_block != 0);
    setting.windows.push_back(window);
  }
  setting.constrained_percent = pick(0, 1) * 60;
  setting.late_percent = pick(0, 2) * 30;
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

// The bounds are tight: ranks that reach one position further than documented report faults.
struct Excess {
  const char* name;
  FakeRankExcess excess;
  const char* fault;
};

class SchedulerBounds : public testing::TestWithParam<Excess> {};

std::string FailureOf(const RunSetting& setting, const FakeRankExcess& excess) {
  std::string failure;
  for (uint64_t seed = 1; seed <= 20 && failure.empty(); ++seed) {
    RunTotals totals;
    SchedulerRun run(setting, seed, excess);
    failure = run.Run(kRequestsPerCourse, &totals);
  }
  return failure;
}

TEST_P(SchedulerBounds, AreTight) {
  const RunSetting setting{
      .name = "Tight", .slots = 6, .blocks = 150, .tokens_per_block = 1, .host_blocks = 400};
  if (GetParam().excess.lookback == 0) {
    EXPECT_THAT(FailureOf(setting, GetParam().excess), testing::HasSubstr(GetParam().fault));
  }
}

// The history is unbounded here, so that the faults are the window's.
TEST_P(SchedulerBounds, AreTightInAWindow) {
  for (const bool overlap : {false, true}) {
    const RunSetting setting{.name = "TightWindow",
                             .overlap = overlap,
                             .slots = 6,
                             .blocks = 33,
                             .tokens_per_block = 128,
                             .host_blocks = 400,
                             .windows = {{.tokens_per_block = 1, .lookback = 9, .block_count = 20}}};
    EXPECT_EQ(FailureOf(setting, {}), "");
    const std::string failure = FailureOf(setting, GetParam().excess);
    EXPECT_THAT(failure, testing::HasSubstr(GetParam().fault));
    EXPECT_THAT(failure, testing::HasSubstr("of group 1"));
  }
}

const Excess kExcesses[] = {
    {"Written", {.written = 1}, "which it does not own"},
    {"LiveRows", {.live_rows = 1}, "lost live MTP row"},
    {"Lookback", {.lookback = 1}, "reads stale"},
};
INSTANTIATE_TEST_SUITE_P(All, SchedulerBounds, testing::ValuesIn(kExcesses),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foredraft
