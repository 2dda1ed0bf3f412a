// A scheduler whose model has a window beside the history. scheduler_property_test checks the blocks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tests/scheduler/scheduler_stage.h"

namespace foredraft {
namespace {

using testing::Each;
using testing::Gt;
using testing::Ne;

constexpr int kLookback = 5;

// Over the history's blocks of 4 tokens. `more_blocks` than a sequence needs.
SchedulerOptions WithWindow(int more_blocks) {
  SchedulerOptions options = SmallOptions();
  options.groups.push_back({.tokens_per_block = 2, .lookback = kLookback, .host_frames_per_block = 3});
  options.groups[1].block_count = options.MinBlockCount(options.groups[1]) + more_blocks;
  return options;
}

// What the plans have mapped of one group.
class Tables {
 public:
  void Apply(const IterationPlan& plan, int group) {
    for (const BlockTableDelta& delta : plan.ranks[0].block_table_deltas) {
      if (delta.group != group) continue;
      for (size_t i = 0; i < delta.block_ids.size(); ++i) {
        entries_[{delta.slot, delta.first_index + static_cast<int>(i)}] = delta.block_ids[i];
      }
    }
  }
  int mapped() const {
    return static_cast<int>(std::count_if(entries_.begin(), entries_.end(),
                                          [](const auto& entry) { return entry.second != kScratchBlock; }));
  }

 private:
  std::map<std::pair<int, int>, int32_t> entries_;  // by slot and index
};

class SchedulerWindow : public testing::Test {
 protected:
  static constexpr int kMoreBlocks = 60;

  // A prompt of `shared` tokens that all of these have, then `own` tokens that only this one has.
  Request Prompt(uint64_t id, int shared, int own) {
    Request request = stage_.MakeRequest(id, 0, 1);
    for (int s = 0; s < shared; ++s) request.prompt_ids.push_back(s % 40);
    for (int s = 0; s < own; ++s) request.prompt_ids.push_back(static_cast<int32_t>(1000 * id) + s);
    return request;
  }
  // Runs the request to its end; returns how many tokens it reused.
  int ReusedLen(const Request& request) {
    stage_.Submit(request);
    int reused_len = -1;
    while (stage_.scheduler.HasWork()) {
      const IterationPlan plan = stage_.Turn();
      for (const SlotAdmission& admission : plan.ranks[0].admissions) reused_len = admission.reused_len;
    }
    return reused_len;
  }

  Stage stage_{WithWindow(kMoreBlocks)};
};

TEST_F(SchedulerWindow, KeepsAsManyBlocksAsItReaches) {
  const CacheGroupShape& window = stage_.scheduler.options().groups[1];
  Tables tables;
  int most_of_prompt = 0;
  int most_of_decode = 0;
  int64_t most_used = 0;
  stage_.Submit(1, 60, 30);
  while (stage_.scheduler.HasWork()) {
    const IterationPlan plan = stage_.Turn();
    tables.Apply(plan, 1);
    const std::vector<CacheGroupLoad> load = stage_.scheduler.load().ranks[0].groups;
    ASSERT_EQ(load.size(), 2u);
    EXPECT_EQ(load[1].used + load[1].free + load[1].cached, window.block_count - 1);
    most_used = std::max(most_used, load[1].used);
    const bool prefills = plan.prefill_rows[0] > 0;
    int& most = prefills ? most_of_prompt : most_of_decode;
    most = std::max(most, tables.mapped());
  }
  EXPECT_LE(most_of_prompt, window.PromptExtent(96, 1, 0, 0));
  EXPECT_LT(window.PromptExtent(96, 1, 0, 0), window.BlocksFor(60));  // not the whole prompt
  EXPECT_LE(most_of_decode, window.DecodeExtent(96, 0, 0));
  EXPECT_GT(most_used, 0);
  EXPECT_EQ(tables.mapped(), 0);
}

TEST_F(SchedulerWindow, ReusesAPromptThatGoesOn) {
  EXPECT_EQ(ReusedLen(Prompt(1, 21, 0)), 0);
  EXPECT_EQ(ReusedLen(Prompt(2, 21, 9)), 20);
  EXPECT_EQ(ReusedLen(Prompt(3, 21, 9)), 20);
}

// The first prompt kept no window at 12; the second one does, because it left the cached prefix there.
TEST_F(SchedulerWindow, ReusesACommonStartFromTheThirdPromptOn) {
  EXPECT_EQ(ReusedLen(Prompt(1, 13, 20)), 0);
  EXPECT_EQ(ReusedLen(Prompt(2, 13, 20)), 0);
  EXPECT_EQ(ReusedLen(Prompt(3, 13, 20)), 12);
  EXPECT_EQ(ReusedLen(Prompt(4, 13, 30)), 12);
}

TEST_F(SchedulerWindow, EvictsTheOldestPrefixEnd) {
  // An end has 3 blocks.
  const int ends = stage_.scheduler.options().groups[1].block_count / 3;
  for (int i = 0; i <= ends; ++i) ReusedLen(Prompt(100 + i, 0, 9));
  EXPECT_EQ(ReusedLen(Prompt(100 + ends, 0, 9)), 8);
  EXPECT_EQ(ReusedLen(Prompt(100 + ends - 5, 0, 9)), 8);
  EXPECT_EQ(ReusedLen(Prompt(100, 0, 9)), 0);
}

TEST(SchedulerWindows, TightPoolsKeepNoPrefixEnds) {
  Stage stage(WithWindow(/*more_blocks=*/0));
  for (uint64_t id : {1, 2}) {
    Request request = stage.MakeRequest(id, 0, 1);
    for (int s = 0; s < 41; ++s) request.prompt_ids.push_back(s);
    stage.Submit(request);
    stage.Drain();
  }
  EXPECT_EQ(stage.scheduler.load().prefix_hit_tokens, 0u);
}

TEST(SchedulerWindows, SwapImagesHaveTheMappedBlocks) {
  SchedulerOptions options = WithWindow(40);
  options.groups[0].block_count = 25;
  options.host_frame_count = 200;
  options.max_num_tokens = 96;
  Stage stage(options);
  for (uint64_t id = 1; id <= 3; ++id) stage.Submit(id, 8, 60);
  while (stage.scheduler.HasWork()) {
    const IterationPlan plan = stage.Turn();
    for (const SwapOut& swap : plan.ranks[0].swaps_out) {
      ASSERT_EQ(swap.blocks.size(), 2u);
      EXPECT_EQ(swap.blocks[0].first_index, 0);
      const CacheGroupBlocks& window = swap.blocks[1];
      EXPECT_GT(window.first_index, 0);
      EXPECT_THAT(window.block_ids, Each(Ne(kScratchBlock)));
      EXPECT_LE(window.block_ids.size(), 3u);  // the last 5 rows
      EXPECT_GT(swap.blocks[0].block_ids.size(), window.block_ids.size());
    }
  }
  EXPECT_THAT(stage.scheduler.load().preemptions, Gt(0u));
}

TEST(SchedulerWindowsDeathTest, HistoryBlocksAreWholeBlocksOfAWindow) {
  SchedulerOptions options = WithWindow(10);
  options.groups[1].tokens_per_block = 3;
  EXPECT_DEATH(Scheduler{options}, "one-writer: 3");
}

TEST(SchedulerWindowsDeathTest, APoolHoldsASequence) {
  EXPECT_DEATH(Scheduler{WithWindow(-1)}, "lookback 5");
}

// Every place of `positions` positions among the blocks.
TEST(CacheGroupShape, CountsTheBlocksOfPositionsAnywhere) {
  for (const int size : {1, 2, 5, 32}) {
    const CacheGroupShape shape{.tokens_per_block = size};
    for (int positions = 0; positions < 3 * size + 3; ++positions) {
      int most = 0;
      for (int first = 0; first < size && positions > 0; ++first) {
        most = std::max(most, (first + positions - 1) / size + 1);
      }
      EXPECT_EQ(shape.BlocksAnywhere(positions), most) << positions << " of " << size;
    }
  }
}

TEST(CacheGroupShape, FlashKeepsNineBlocksOfItsWindows) {
  constexpr int kMillion = 1 << 20;
  const CacheGroupShape window{.tokens_per_block = 32, .lookback = 127};
  const CacheGroupShape tail{.tokens_per_block = 8, .lookback = 7};
  EXPECT_EQ(window.DecodeExtent(kMillion, 1, 1), 6);
  EXPECT_EQ(tail.DecodeExtent(kMillion, 1, 1), 3);
  EXPECT_EQ(window.DecodeExtent(40, 1, 1), 2);  // no more than the sequence is long
  EXPECT_EQ(window.EndBlocks(), 4);
  EXPECT_EQ(window.FirstIndex(128), 0);
  EXPECT_EQ(window.FirstIndex(160), 1);
}

}  // namespace
}  // namespace foredraft
