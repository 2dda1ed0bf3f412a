#include "tests/bench/slowest_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "tests/bench/op_cost.h"
#include "tests/bench/op_launches.h"

namespace foredraft {
namespace {

ExpertChoice OfR1(int ranks) {
  return {.expert_count = 256, .ranks = ranks, .top_k = 8, .groups = 8, .chosen_groups = 4};
}

// Worked out apart from this program, by simulations of R1's routing.
TEST(SlowestRank, MeetsWhatR1sRoutingBrings) {
  const struct {
    int ranks, rows;
    double experts;
  } cases[] = {{8, 8, 12.0}, {8, 32, 25.1}, {8, 1, 3.5},  {8, 4, 7.8},
               {2, 1, 5.6},  {2, 4, 18.2},  {1, 4, 30.5}, {1, 1, 8.0}};
  for (const auto& c : cases) {
    EXPECT_NEAR(SlowestRank(OfR1(c.ranks)).MostExperts(c.rows), c.experts, 0.02 * c.experts)
        << c.rows << " rows on " << c.ranks << " ranks";
  }
}

// One row that draws 2 of 4 experts on 2 ranks finds both on one rank in 2 of 6 cases.
TEST(SlowestRank, AgreesWithSmallCasesByHand) {
  const SlowestRank two({.expert_count = 4, .ranks = 2, .top_k = 2});
  EXPECT_EQ(two.MostExperts(0), 0);
  EXPECT_NEAR(two.MostExperts(1), 4.0 / 3, 0.04);
  EXPECT_EQ(two.MostExperts(1000), 2);
  // A group is a rank, and a row chooses one.
  const SlowestRank grouped({.expert_count = 4, .ranks = 2, .top_k = 2, .groups = 2, .chosen_groups = 1});
  EXPECT_EQ(grouped.MostExperts(1), 2);
}

TEST(SlowestRank, MeetsMoreWithMoreRows) {
  const SlowestRank slowest(OfR1(8));
  for (int rows = 1; rows < 400; ++rows) {
    EXPECT_GE(slowest.MostExperts(rows), slowest.MostExperts(rows - 1)) << rows;
    EXPECT_GE(slowest.MostExperts(rows) * 1.001, 256 * (1 - std::pow(1 - 8 / 256.0, rows)) / 8) << rows;
  }
  EXPECT_EQ(slowest.MostExperts(100'000), 32);
}

GroupedGemmParams Experts(int rows) {
  const PackedWeight expert = {.n = 4096, .k = 7168, .format = kFp8Format};
  return {.out = {.rows = rows * 8, .cols = 4096, .stride = 4096},
          .x = {.rows = rows, .cols = 7168, .stride = 7168},
          .experts = {.count = 32, .first = expert}};
}

TEST(SlowestRank, DecidesTheBytesAndTheTilesOfExperts) {
  const GpuModel& gpu = *FindGpuModel("h200");
  const CostContext mean = {.expert_ranks = 8};
  CostContext slowest = mean;
  slowest.slowest = std::make_shared<SlowestRank>(OfR1(8));
  const double expert_bytes = WeightBytes(Experts(1).experts.first);
  EXPECT_NEAR(CostOf(Experts(8), slowest).stored_bytes, 12.0 * expert_bytes, 0.24 * expert_bytes);
  EXPECT_NEAR(CostOf(Experts(8), mean).stored_bytes, 7.2 * expert_bytes, 0.1 * expert_bytes);
  // A tile of rows for each expert that has any.
  const auto tiles = [&](int rows, const CostContext& shape) {
    return LaunchesOf(Experts(rows), shape, gpu).back().items;
  };
  EXPECT_NEAR(tiles(8, slowest) / tiles(8, mean), 12.0 / 7.1, 0.05);
  EXPECT_NEAR(tiles(32, slowest) / tiles(32, mean), 25.1 / 20.2, 0.04);
  EXPECT_EQ(tiles(1024, slowest), tiles(1024, mean));
}

}  // namespace
}  // namespace foredraft
