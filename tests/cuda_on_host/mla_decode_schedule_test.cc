// kernels/cuda/attention/mla_decode_schedule.h: a row's splits follow from its own position, and each is
// computed once.

#include "kernels/cuda/attention/mla_decode_schedule.h"

#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/attention/mla_decode_load.h"

namespace foredraft::cuda {
namespace {

TEST(MlaDecodeSchedule, ARowsSplitsFollowFromItsPosition) {
  const struct {
    int32_t last_position, len, count, last_tiles;
  } kRows[] = {{0, 512, 1, 1},         {63, 512, 1, 1},        {64, 512, 1, 2},
               {511, 512, 1, 8},       {512, 512, 2, 1},       {4095, 512, 8, 8},
               {16383, 512, 32, 8},    {16384, 1024, 17, 1},   {32767, 1024, 32, 16},
               {65535, 1024, 64, 16},  {65536, 2048, 33, 1},   {131071, 2048, 64, 32},
               {131072, 3072, 43, 33}, {163839, 3072, 54, 16}, {1048575, 16384, 64, 256}};
  for (const auto& row : kRows) {
    const RowSplits splits = SplitsOf(0, row.last_position);
    EXPECT_EQ(splits.len, row.len) << row.last_position;
    EXPECT_EQ(splits.count, row.count) << row.last_position;
    EXPECT_EQ(splits.tiles, row.last_tiles) << row.last_position;
    EXPECT_LE(splits.count, MaxSplits(row.last_position + 1)) << row.last_position;
  }
  for (const auto& [positions, most] :
       {std::pair{1, 1}, {513, 2}, {16384, 32}, {32768, 32}, {32769, 33}, {163840, 64}}) {
    EXPECT_EQ(MaxSplits(positions), most) << positions;
  }
  EXPECT_EQ(SplitsOf(3, 2).count, 0);
  EXPECT_EQ(SplitsOf(3, 3).count, 1);
  EXPECT_EQ(SplitsOf(600, 1600).first, 1);
  EXPECT_EQ(SplitsOf(600, 1600).count, 3);
}

struct Rows {
  std::vector<PlacedRow> placed;
  DecodeGrid grid;
};

Rows Place(const std::vector<int32_t>& positions, int32_t first_position, int64_t blocks) {
  const int32_t count = static_cast<int32_t>(positions.size());
  int32_t largest = 0;
  for (const int32_t position : positions) largest = std::max(largest, position);
  const int32_t max_splits = MaxSplits(largest + 1);
  Rows rows = {{}, {count, GroupCount(blocks, 1, count, max_splits), max_splits, 0}};
  for (int32_t row = 0; row < count; ++row) {
    rows.placed.push_back({row, rows.grid.cost, SplitsOf(first_position, positions[row])});
    rows.grid.cost += rows.placed.back().splits.cost();
  }
  return rows;
}

// Checks that the groups' parts of one row are its splits in order, and collects its partial results.
void CheckRow(const DecodeGrid& grid, const PlacedRow& row, std::set<int32_t>& used) {
  const int64_t room = PartialCount(grid.rows, grid.groups, grid.max_splits);
  int32_t next = 0, results = 0;
  for (int32_t group = 0; group < grid.groups; ++group) {
    const RowPart part = PartOf(grid, group, row);
    if (part.begin >= part.end) continue;
    ASSERT_EQ(part.begin, next);
    next = part.end;
    const bool whole = part.begin == 0 && part.end == row.splits.count;
    ASSERT_EQ(part.partial < 0, whole);
    if (whole) continue;
    const RowPartials partials = PartialsOf(grid, row);
    if (part.begin == 0) {
      ASSERT_EQ(partials.merged_splits, part.end);
    }
    ASSERT_EQ(part.partial, partials.first + results);
    const int32_t count = part.begin == 0 ? 1 : part.end - part.begin;
    for (int32_t i = 0; i < count; ++i) {
      ASSERT_TRUE(used.insert(part.partial + i).second) << "partial result " << part.partial + i;
      ASSERT_LT(part.partial + i, room);
    }
    results += count;
  }
  ASSERT_EQ(next, row.splits.count);
}

TEST(MlaDecodeSchedule, EverySplitIsComputedOnceAndTheSharesAreEqual) {
  std::mt19937 random(7);
  const auto any = [&](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % (high - low + 1));
  };
  for (int round = 0; round < 2000; ++round) {
    const int32_t longest = any(0, 4) == 0 ? 163839 : any(1, 20000);
    std::vector<int32_t> positions(any(1, round % 8 == 0 ? 300 : 40));
    for (int32_t& position : positions) position = any(0, 5) == 0 ? -1 : any(0, longest);
    const Rows rows = Place(positions, any(0, 3), any(1, 140));
    SCOPED_TRACE("round " + std::to_string(round));
    std::set<int32_t> used;
    int32_t largest_split = 0;
    for (const PlacedRow& row : rows.placed) {
      CheckRow(rows.grid, row, used);
      if (HasFatalFailure()) return;
      if (row.splits.count > 0) largest_split = std::max(largest_split, row.splits.split_cost());
    }
    for (int32_t group = 0; group < rows.grid.groups; ++group) {
      int32_t cost = 0;
      for (const PlacedRow& row : rows.placed) {
        const RowPart part = PartOf(rows.grid, group, row);
        if (part.begin >= part.end) continue;
        cost += (part.end - part.begin) * row.splits.split_cost();
        if (part.end == row.splits.count) cost += row.splits.tiles + kSplitOverhead - row.splits.split_cost();
      }
      ASSERT_LE(cost, rows.grid.cost / rows.grid.groups + 1 + largest_split) << "group " << group;
    }
  }
}

// The rows of R1 (two tiles of heads) on 132 multiprocessors.
TEST(MlaDecodeSchedule, SharesAreThoseOf64Bits) {
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    const int32_t groups = 1 + static_cast<int32_t>(random() % 200);
    const int32_t cost = 1 + static_cast<int32_t>(random() % (i % 2 == 0 ? 500 : 2'000'000'000));
    const DecodeGrid grid = {.rows = 1, .groups = groups, .max_splits = 1, .cost = cost};
    const int32_t group = static_cast<int32_t>(random() % groups);
    const int32_t begin = static_cast<int32_t>((int64_t{cost} * group + groups - 1) / groups);
    EXPECT_EQ(ShareOf(grid, group).begin, begin);
    for (const int32_t at : {begin - 1, begin, static_cast<int32_t>(random() % cost)}) {
      if (at < 0 || at >= cost) continue;
      EXPECT_EQ(GroupAt(grid, at), int64_t{at} * groups / cost) << at << " of " << cost << ", " << groups;
    }
  }
}

TEST(MlaDecodeSchedule, LoadsOfR1) {
  const struct {
    int32_t rows, context, splits, busy_blocks, busiest_tiles, partials;
  } kLoads[] = {
      {1, 4096, 8, 16, 8, 8},           {4, 4096, 32, 64, 8, 32},
      {8, 4096, 64, 128, 8, 64},        {16, 4096, 128, 132, 16, 120},
      {128, 4096, 1024, 132, 128, 280}, {1, 32768, 32, 64, 16, 32},
      {33, 32768, 1056, 132, 256, 561}, {128, 32768, 4096, 132, 1008, 1054},
      {1, 163840, 54, 108, 48, 54},
  };
  for (const auto& want : kLoads) {
    const std::vector<int32_t> positions(want.rows, want.context - 1);
    const DecodeLoad load = LoadOf(positions, 0, 2, MaxSplits(163840), 132);
    const std::string name = std::to_string(want.rows) + " rows of " + std::to_string(want.context);
    EXPECT_EQ(load.tiles, int64_t{want.rows} * want.context / kKeyTile) << name;
    EXPECT_EQ(load.splits, want.splits) << name;
    EXPECT_EQ(load.busy_blocks, want.busy_blocks) << name;
    EXPECT_EQ(load.busiest_tiles, want.busiest_tiles) << name;
    EXPECT_EQ(load.partials, want.partials) << name;
  }
}

// The prediction follows its rule: products of the busiest block or the keys' bytes, then the merge.
TEST(MlaDecodeSchedule, PredictsByTheBusiestBlock) {
  const std::vector<int32_t> positions(8, 4095);
  const DecodeLoad load = LoadOf(positions, 0, 2, MaxSplits(163840), 132);
  const DecodeRates rates = {.tile = 2, .split = 3, .merge_round = 5, .launch = 7, .bytes_per_second = 1e30};
  EXPECT_EQ(load.row_partials, 8);
  EXPECT_DOUBLE_EQ(DecodeSeconds(load, 0, rates), 7 + 8 * 2 + 1 * 3 + 2 * 5);
  EXPECT_DOUBLE_EQ(DecodeSeconds(load, 1e33, rates), 7 + 1000 + 2 * 5);
  EXPECT_DOUBLE_EQ(load.balance(), 8.0 * 64 * 2 / 132 / 8);
}

}  // namespace
}  // namespace foredraft::cuda
