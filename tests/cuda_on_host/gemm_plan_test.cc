// The choice of tiles, as tables of R1's shapes, and what holds for every shape.

#include "kernels/cuda/gemm/gemm_plan.h"

#include <cmath>
#include <string>

#include "gtest/gtest.h"

namespace foredraft::cuda {
namespace {

struct Weight {
  const char* name;
  int n, k, element_bytes;
};

// One layer of R1.
constexpr Weight kRouter = {"router", 256, 7168, 2};
constexpr Weight kQkvA = {"q_a with kv_a", 2112, 7168, 1};
constexpr Weight kQB = {"q_b", 24576, 1536, 1};
constexpr Weight kO = {"o", 7168, 16384, 1};
constexpr Weight kDenseGateUp = {"dense gate and up", 36864, 7168, 1};
constexpr Weight kDenseDown = {"dense down", 7168, 18432, 1};
constexpr Weight kSharedGateUp = {"shared gate and up", 4096, 7168, 1};
constexpr Weight kSharedDown = {"shared down", 7168, 2048, 1};
constexpr Weight kHead = {"head", 129280, 7168, 2};
constexpr Weight kAll[] = {kRouter,    kQkvA,         kQB,         kO,   kDenseGateUp,
                           kDenseDown, kSharedGateUp, kSharedDown, kHead};

GemmSize SizeOf(const Weight& w, int rows) {
  return {.n = w.n, .k = w.k, .element_bytes = w.element_bytes, .rows = rows};
}

double Bytes(const Weight& w) { return double{1} * w.n * w.k * w.element_bytes; }

std::string Show(const GemmPlan& p) {
  return std::to_string(p.tile.rows) + "x" + std::to_string(p.tile.outputs) + ", splits " +
         std::to_string(p.splits) + ", blocks " + std::to_string(p.blocks) + ", waves " +
         std::to_string(p.waves);
}

TEST(GemmPlan, ChoosesForR1) {
  struct Case {
    Weight weight;
    int rows;
    const char* plan;
  };
  const Case cases[] = {
      {kRouter, 1, "16x16, splits 8, blocks 128, waves 1"},
      {kRouter, 32, "32x16, splits 8, blocks 128, waves 1"},
      {kRouter, 128, "64x32, splits 8, blocks 128, waves 1"},
      {kQkvA, 4, "16x32, splits 2, blocks 132, waves 1"},
      {kQkvA, 128, "64x64, splits 2, blocks 132, waves 1"},
      {kQB, 32, "32x64, splits 1, blocks 132, waves 3"},
      {kQB, 128, "128x128, splits 1, blocks 132, waves 2"},
      {kO, 4, "16x64, splits 1, blocks 112, waves 1"},
      {kO, 64, "64x64, splits 1, blocks 112, waves 1"},
      {kO, 128, "128x64, splits 1, blocks 112, waves 1"},
      {kDenseGateUp, 32, "32x64, splits 1, blocks 132, waves 5"},
      {kSharedGateUp, 4, "16x32, splits 1, blocks 128, waves 1"},
      {kSharedDown, 32, "32x64, splits 1, blocks 112, waves 1"},
      {kHead, 8, "16x128, splits 1, blocks 132, waves 8"},
  };
  for (const Case& c : cases) {
    const int splits = GemmSplits(c.weight.n, c.weight.k, c.weight.element_bytes);
    EXPECT_EQ(Show(PlanGemm(SizeOf(c.weight, c.rows), splits)), c.plan)
        << c.weight.name << ", " << c.rows << " rows";
  }
}

TEST(GemmPlan, SplitsOnlyNarrowWeights) {
  const auto splits = [](const Weight& w) { return GemmSplits(w.n, w.k, w.element_bytes); };
  EXPECT_EQ(splits(kRouter), 8);
  EXPECT_EQ(splits(kQkvA), 2);
  for (const Weight& w : {kQB, kO, kDenseGateUp, kDenseDown, kSharedGateUp, kSharedDown, kHead}) {
    EXPECT_EQ(splits(w), 1) << w.name;
  }
  // A split has some steps, however small the weight.
  EXPECT_EQ(GemmSplits(8, 64, 2), 1);
  EXPECT_EQ(GemmSplits(64, 128, 2), 1);
}

// Times of an H200, in microseconds (tests/bench/RESULTS.md), of tiles whose steps bound them: within a
// fifth.
TEST(GemmPlan, StepsTakeWhatAnH200Took) {
  struct Case {
    Weight weight;
    int rows;
    GemmTile tile;
    double us;
  };
  const Case cases[] = {{kQkvA, 8, {16, 32}, 11.8},        {kQkvA, 8, {16, 128}, 17.1},
                        {kQkvA, 128, {64, 64}, 15.3},      {kQkvA, 128, {128, 64}, 19.0},
                        {kDenseGateUp, 8, {16, 32}, 95.9}, {kO, 128, {64, 128}, 40.4},
                        {kO, 128, {128, 128}, 64.4},       {kSharedGateUp, 128, {64, 64}, 15.7}};
  for (const Case& c : cases) {
    const double us = PredictGemm(SizeOf(c.weight, c.rows), c.tile, 1).microseconds;
    EXPECT_NEAR(us / c.us, 1, 0.2) << c.weight.name << ", " << c.rows << " rows, " << c.tile.rows << " x "
                                   << c.tile.outputs;
  }
}

TEST(GemmPlan, IsNeverFasterThanMemoryNorSlowerThanOneTileForAll) {
  const GemmRates rates;
  for (const Weight& w : kAll) {
    for (int rows = 1; rows <= 256; ++rows) {
      const GemmPlan plan = PlanGemm(SizeOf(w, rows));
      const std::string what = std::string(w.name) + ", " + std::to_string(rows) + " rows: " + Show(plan);
      EXPECT_GE(plan.microseconds, Bytes(w) / rates.memory_bytes_per_us) << what;
      EXPECT_LE(plan.microseconds, PredictGemm(SizeOf(w, rows), {128, 128}, 1).microseconds) << what;
      EXPECT_LE(plan.blocks, rates.multiprocessors) << what;
      EXPECT_EQ(plan.tile.rows % 16, 0) << what;
      EXPECT_GE(plan.stages, 4) << what;
      EXPECT_LE(plan.stages * GemmStageBytes(plan.tile.rows > 64 ? 128 : 64, plan.tile.outputs),
                kGemmSharedBudget)
          << what;
      EXPECT_EQ(plan.bytes_in_flight, int64_t{plan.stages} * (plan.tile.rows + plan.tile.outputs) * 128);
    }
  }
}

TEST(GemmPlan, MoreRowsTakeNoLessTime) {
  for (const Weight& w : kAll) {
    const int splits = GemmSplits(w.n, w.k, w.element_bytes);
    double before = 0;
    for (int rows = 16; rows <= 256; rows += 16) {
      const double now = PlanGemm(SizeOf(w, rows), splits).microseconds;
      EXPECT_GE(now, 0.98 * before) << w.name << ", " << rows << " rows";  // a tie may go to a wider tile
      before = now;
    }
  }
}

// 32 experts of one rank.
GemmSize GateUp(int rows) {
  return {.n = 4096, .k = 7168, .element_bytes = 1, .rows = rows, .groups = 32, .ragged = true};
}

TEST(GemmPlan, CountsTheExpertsThatAreExpectedToHaveRows) {
  const auto items = [](int rows) { return PredictGemm(GateUp(rows), {64, 128}, 1).items / 32; };
  EXPECT_NEAR(items(1), 32 * (1 - std::exp(-1.0 / 32)), 1e-9);
  EXPECT_NEAR(items(32), 32 * (1 - std::exp(-1.0)), 1e-9);
  EXPECT_NEAR(items(512), 32, 0.01);  // 16 rows each: hardly one without rows, or with more than 64
  EXPECT_NEAR(items(64 * 32 * 8), 32 * 8.5, 1);  // many: half a tile more than full ones, on average
}

TEST(GemmPlan, FusesGateAndUpUnlessFewTilesHaveRows) {
  EXPECT_FALSE(GateUpIsFaster(GateUp(1)));
  for (const int rows : {8, 32, 64, 128, 256, 1024, 2048}) EXPECT_TRUE(GateUpIsFaster(GateUp(rows))) << rows;
  EXPECT_EQ(PlanGateUp(GateUp(32)).tile.outputs, 256);
}

// ---- 4 bits ----

GemmSize FourBits(int n, int k, int rows, const WeightFormat& format = kInt4Format) {
  return {.n = n, .k = k, .rows = rows, .format = format};
}

TEST(Gemm4BitPlan, ChoosesForR1) {
  struct Case {
    Weight weight;
    int rows;
    const char* plan;
  };
  const Case cases[] = {
      {kQkvA, 4, "16x64, splits 8, blocks 264, waves 1"},
      {kQkvA, 32, "16x64, splits 8, blocks 528, waves 1"},
      {kQB, 4, "16x64, splits 1, blocks 384, waves 1"},
      {kQB, 128, "64x64, splits 1, blocks 396, waves 2"},
      {kO, 1, "16x64, splits 2, blocks 224, waves 1"},
      {kDenseGateUp, 8, "16x64, splits 1, blocks 528, waves 2"},
      {kSharedDown, 8, "16x64, splits 1, blocks 112, waves 1"},
  };
  for (const Case& c : cases) {
    const int splits = Splits4Bit(c.weight.n, c.weight.k, kInt4Format);
    EXPECT_EQ(Show(Plan4Bit(FourBits(c.weight.n, c.weight.k, c.rows), splits)), c.plan)
        << c.weight.name << ", " << c.rows << " rows";
  }
}

TEST(Gemm4BitPlan, IsNeverFasterThanMemoryNorSlowerThanOneTileForAll) {
  const GemmRates rates;
  for (const WeightFormat& format : {kInt4Format, kMxfp4Format}) {
    for (const Weight& w : kAll) {
      const double bytes = double(w.n) * w.k * (0.5 + 2.0 / 32);
      const int splits = Splits4Bit(w.n, w.k, format);
      double before = 0;
      for (int rows = 1; rows <= 256; ++rows) {
        const GemmSize size = FourBits(w.n, w.k, rows, format);
        const GemmPlan plan = Plan4Bit(size, splits);
        const std::string what = std::string(w.name) + ", " + std::to_string(rows) + " rows: " + Show(plan);
        EXPECT_GE(plan.microseconds, bytes / rates.memory_bytes_per_us) << what;
        EXPECT_LE(plan.microseconds, 1.011 * Predict4Bit(size, 64, splits).microseconds) << what;
        EXPECT_LE(plan.blocks, rates.multiprocessors * Resident4Bit(plan.tile.rows)) << what;
        EXPECT_GE(plan.microseconds, 0.95 * before) << what;  // but for how full the last wave is
        before = plan.microseconds;
      }
    }
  }
}

TEST(Gemm4BitPlan, SplitsSomeWeightsWhoseTilesAreFew) {
  EXPECT_EQ(Splits4Bit(kDenseGateUp.n, kDenseGateUp.k, kMxfp4Format), 1);  // 576 tiles
  EXPECT_GT(Splits4Bit(kSharedGateUp.n, kSharedGateUp.k, kInt4Format), 1);
  EXPECT_EQ(Splits4Bit(64, 512, kInt4Format), 1);  // a split has four steps
}

TEST(Gemm4BitPlan, AMultiprocessorHasRoomForItsBlocks) {
  constexpr int kShared = 228 * 1024, kReserved = 1024, kStarts = 513 * 4;
  for (const int rows : {16, 32, 64}) {
    const int stage = rows * (256 + 16) + 64 * 64 + 4 * 64 * 2;
    const int block = Stages4Bit(rows) * stage + rows * 8 + kStarts + 4 + kReserved;
    EXPECT_LE(block * Resident4Bit(rows), kShared) << rows;
    EXPECT_LE(block, 99 * 1024 + kReserved) << rows << ": the least of the supported GPUs";
  }
}

}  // namespace
}  // namespace foredraft::cuda
