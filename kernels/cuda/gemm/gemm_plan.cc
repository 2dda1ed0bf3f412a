#include "kernels/cuda/gemm/gemm_plan.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernels/cuda/gemm/weight_4bit.h"

namespace foredraft::cuda {
namespace {

constexpr int32_t kStepBytes = 128;                  // of each row
constexpr int32_t kWarpgroupRows = 64;               // of a wgmma
constexpr int32_t kGateUpOutputs = 256;              // 128 of gate, 128 of up
constexpr int32_t kGateUpExchangeBytes = 32 * 1024;  // shared memory besides the stages

// Microseconds. Start: the pipeline's first bytes. End: the last stores. A launch that follows another one
// directly costs kLaunch more.
constexpr double kStart = 1.8;
constexpr double kEnd = 0.7;
constexpr double kEpilogue = 0.3;
constexpr double kLaunch = 1.0;
// Partial sums: store, fence, count; then rounds of loads, each of several splits (split_sum.h).
constexpr double kExchange = 1.8;
constexpr double kExchangeRound = 0.6;

// Cycles of a step of Hopper's kernels, from an H200's times for tiles of 16 x 32 to 128 x 128: a constant
// for BF16 and one for FP8, which also promotes its accumulators, and a part for each row of either operand
// that TMA writes to shared memory.
constexpr double kStepBf16 = 130;
constexpr double kStepF8 = 200;
constexpr double kStepRow = 1.7;
// Two warpgroups with 128 outputs each do not overlap a step's products with the next one's wait.
constexpr double kWideTile = 1.2;

// Gemm4Bit, measured on an H200: cycles of a step alone on an SM, and of a block's step on an SM full of
// blocks, by rows of the tile; E2M1 codes take more instructions than INT4.
constexpr double kStepLatency4 = 800;
constexpr double StepIssue4(int32_t tile_rows) {
  return tile_rows == 16 ? 430 : tile_rows == 32 ? 780 : 1290;
}
constexpr double kE2m1 = 1.07;
constexpr double kMmaShare = 0.62;      // of the matrix units' 2,048 products a cycle, by mma.sync
constexpr double kLoadLatencyUs = 0.9;  // from a request to its bytes, under load

struct Groups {
  double active;     // expected, with at least one row
  double row_tiles;  // expected, of all groups
};

// Rows of a random group are Poisson distributed.
Groups ExpectedTiles(const GemmSize& size, int32_t tile_rows) {
  if (!size.ragged) {
    const int32_t tiles = (size.rows + tile_rows - 1) / tile_rows;
    return {static_cast<double>(size.groups), static_cast<double>(tiles) * size.groups};
  }
  const double mean = static_cast<double>(size.rows) / size.groups;
  if (mean > 4.0 * tile_rows || mean > 300) {
    return {static_cast<double>(size.groups), (mean / tile_rows + 0.5) * size.groups};
  }
  double probability = std::exp(-mean);
  const double none = probability;
  double tiles = 0;
  const int32_t most = static_cast<int32_t>(mean + 10 * std::sqrt(mean) + 20);
  for (int32_t rows = 1; rows <= most; ++rows) {
    probability *= mean / rows;
    const int32_t tiles_of_rows = (rows + tile_rows - 1) / tile_rows;
    tiles += probability * tiles_of_rows;
  }
  return {(1 - none) * size.groups, tiles * size.groups};
}

struct ItemCost {
  double us;            // alone on an SM
  double memory_bytes;  // from memory: weights, once for all tiles of rows
  double l2_bytes;      // into the SM
};

// Time of `count` items that run at once.
double WaveUs(double count, const ItemCost& item, const GemmRates& rates) {
  return std::max({item.us, item.memory_bytes / rates.sm_memory_bytes_per_us,
                   count * item.memory_bytes / rates.memory_bytes_per_us,
                   count * item.l2_bytes / rates.l2_bytes_per_us});
}

double StepUs(GemmTile tile, bool f8, const GemmRates& rates) {
  // A k group of 32 bytes takes outputs / 2 cycles, but at least those of reading its 64 rows.
  const bool pair = tile.outputs == kGateUpOutputs;
  const int32_t group_outputs = pair ? tile.outputs / 2 : tile.outputs;
  const int32_t warpgroups = pair || tile.rows > kWarpgroupRows ? 2 : 1;
  const double wgmma = warpgroups * 4 * std::max(group_outputs / 2.0, 16.0);
  const double wide = warpgroups == 2 && group_outputs == 128 ? kWideTile : 1;
  const double step = wide * ((f8 ? kStepF8 : kStepBf16) + kStepRow * (tile.rows + tile.outputs));
  const double loads = (tile.rows + tile.outputs) * double{kStepBytes} / rates.sm_bytes_per_us;
  return std::max(std::max(wgmma, step) / rates.cycles_per_us, loads);
}

// splits_at_once: the splits whose sums one round of loads reads.
double ExchangeUs(const GemmSize& size, int32_t splits, int32_t splits_at_once, const GemmRates& rates) {
  if (splits == 1) return 0;
  const int32_t rounds = (splits + splits_at_once - 1) / splits_at_once;
  return kExchange + kExchangeRound * rounds +
         2.0 * sizeof(float) * splits * size.rows * size.n / rates.l2_bytes_per_us;
}

int32_t Stages(GemmTile tile, int32_t other_bytes) {
  const int32_t rows = tile.outputs != kGateUpOutputs && tile.rows > kWarpgroupRows ? 128 : 64;
  return (kGemmSharedBudget - other_bytes) / GemmStageBytes(rows, tile.outputs);
}

// Cycles of an SM's busiest unit for a step of Gemm4Bit.
double StepCycles4(int32_t tile_rows, DType codes) {
  const bool square = tile_rows == 64;  // 2 x 2 warps, which widen every code twice; else side by side
  const double values = double{kTile4Outputs} * kBlock4Inputs;
  const double issue = StepIssue4(tile_rows) * (codes == DType::kInt4 ? 1 : kE2m1);
  const double products = values * tile_rows / (2048 * kMmaShare);
  const double reads = tile_rows * 2.0 * kBlock4Inputs * (square ? 2 : 4) / 128;  // ldmatrix
  return std::max({issue, products, reads});
}

int32_t Steps(const GemmSize& size) { return size.k * size.element_bytes / kStepBytes; }

// The rows of a tile if `rows` are spread over the fewest tiles of at most `most` rows.
int32_t EvenTileRows(int32_t rows, int32_t most) {
  const int32_t tiles = std::max((rows + most - 1) / most, 1);
  return std::max(((rows + tiles - 1) / tiles + 15) / 16 * 16, 16);
}

int32_t KernelRows(GemmTile tile) { return tile.rows > kWarpgroupRows ? 2 * kWarpgroupRows : kWarpgroupRows; }

// Bytes that a tile's sums of segments take to and from device memory.
double WaitingTraffic(GemmTile tile, int32_t segments) {
  // The sum of the first 1, 2 or 4 of twice as many segments is stored and loaded once.
  double sums = 0;
  for (int32_t set = SetsInShared(tile.outputs); segments >> set > 1; ++set) sums += segments >> (set + 1);
  return 2.0 * sizeof(float) * sums * KernelRows(tile) * tile.outputs;
}

// Shared memory of a block besides the stages.
int32_t OtherBytes(GemmTile tile, int32_t segments) {
  if (tile.outputs == kGateUpOutputs) return kGateUpExchangeBytes;
  return segments > 1 ? SharedWaitingBytes(KernelRows(tile), tile.outputs) : 0;
}

// Calls visit(rows) for the numbers of rows a tile may have, largest first.
template <class Visit>
void ForTileRows(const GemmSize& size, int32_t largest, const Visit& visit) {
  for (int32_t most = largest; most >= 16; most /= 2) {
    visit(size.ragged ? most : EvenTileRows(size.rows, most));
  }
}

}  // namespace

GemmPlan PredictGemm(const GemmSize& size, GemmTile tile, int32_t splits, const GemmRates& rates) {
  const Groups groups = ExpectedTiles(size, tile.rows);
  const int32_t tiles_n = (size.n + tile.outputs - 1) / tile.outputs;
  const double steps = static_cast<double>(Steps(size)) / splits;
  const double item_row_bytes = steps * kStepBytes;
  GemmPlan plan = {.tile = tile, .splits = splits};
  plan.items = groups.row_tiles * tiles_n * splits;
  plan.blocks = static_cast<int32_t>(std::min<double>(std::ceil(plan.items), rates.multiprocessors));
  plan.waves = static_cast<int32_t>(std::ceil(plan.items / rates.multiprocessors));
  plan.stages = Stages(tile, OtherBytes(tile, size.segments));
  plan.bytes_in_flight = int64_t{plan.stages} * (tile.rows + tile.outputs) * kStepBytes;
  if (plan.items == 0) return plan;

  const ItemCost item = {
      .us = steps * StepUs(tile, size.element_bytes == 1, rates) + kEpilogue,
      .memory_bytes = item_row_bytes * size.n / tiles_n * groups.active / groups.row_tiles,
      .l2_bytes = item_row_bytes * (tile.rows + tile.outputs) + WaitingTraffic(tile, size.segments)};
  const double full = std::floor(plan.items / rates.multiprocessors);
  const double rest = plan.items - full * rates.multiprocessors;
  plan.microseconds = kStart + full * WaveUs(rates.multiprocessors, item, rates) + kEnd;
  if (rest > 0) plan.microseconds += WaveUs(rest, item, rates);
  plan.microseconds += ExchangeUs(size, splits, std::max(128 / tile.outputs, 1), rates);
  return plan;
}

GemmPlan PlanGemm(const GemmSize& size, int32_t splits, const GemmRates& rates, int32_t only_outputs) {
  GemmPlan best = {};
  ForTileRows(size, 128, [&](int32_t rows) {
    for (const int32_t outputs : {128, 64, 32, 16}) {
      if (only_outputs > 0 && outputs != only_outputs) continue;
      const int32_t too_large = (rows > kWarpgroupRows ? 1 : 0) + (outputs == 128 ? 1 : 0);
      if (splits > 1 && too_large > (size.segments > 1 ? 0 : 1)) continue;
      const GemmPlan plan = PredictGemm(size, {rows, outputs}, splits, rates);
      if (best.tile.rows == 0 || plan.microseconds < 0.99 * best.microseconds) best = plan;
    }
  });
  return best;
}

GemmPlan PlanGateUp(const GemmSize& size, const GemmRates& rates) {
  GemmPlan best = {};
  ForTileRows(size, kWarpgroupRows, [&](int32_t rows) {
    const GemmPlan plan = PredictGemm(size, {rows, kGateUpOutputs}, 1, rates);
    if (best.tile.rows == 0 || plan.microseconds < 0.99 * best.microseconds) best = plan;
  });
  return best;
}

bool GateUpIsFaster(const GemmSize& size, const GemmRates& rates) {
  // silu_mul is a launch that reads the sums and writes little.
  const double activated_bytes = static_cast<double>(sizeof(float)) * size.rows * size.n;
  const double silu_mul = kLaunch + kStart + kEnd + activated_bytes / rates.l2_bytes_per_us;
  const double sums = activated_bytes / rates.l2_bytes_per_us;
  // Two kernels are chosen only for a gain that exceeds the prediction's error.
  return PlanGateUp(size, rates).microseconds <=
         1.1 * (PlanGemm(size, 1, rates).microseconds + sums + silu_mul);
}

GemmPlan Predict4Bit(const GemmSize& size, int32_t tile_rows, int32_t splits, const GemmRates& rates) {
  const Layout4Bit layout = {size.n, size.k, size.format.columns};
  const Groups groups = ExpectedTiles(size, tile_rows);
  const double steps = static_cast<double>(layout.blocks()) / splits;
  const double at_once = static_cast<double>(rates.multiprocessors) * Resident4Bit(tile_rows);
  GemmPlan plan = {.tile = {tile_rows, kTile4Outputs}, .splits = splits};
  plan.items = groups.row_tiles * layout.tiles() * splits;
  plan.blocks = static_cast<int32_t>(std::min(std::ceil(plan.items), at_once));
  plan.waves = static_cast<int32_t>(std::ceil(plan.items / at_once));
  plan.stages = Stages4Bit(tile_rows);
  if (plan.items == 0) return plan;

  // Rows past a group's end are not loaded.
  const double rows = static_cast<double>(size.ragged ? 1 : size.groups) * size.rows / groups.row_tiles;
  const double step_bytes = layout.block_bytes() + rows * 2 * kBlock4Inputs;
  plan.bytes_in_flight = static_cast<int64_t>((plan.stages - 1) * step_bytes);
  const double memory_bytes = steps * layout.block_bytes() * groups.active / groups.row_tiles;
  const double l2_bytes = steps * step_bytes;
  const auto wave = [&](double count) {
    const double on_sm = std::ceil(count / rates.multiprocessors);
    const double cycles = steps * std::max(kStepLatency4, on_sm * StepCycles4(tile_rows, size.format.code));
    return std::max(
        {cycles / rates.cycles_per_us + kEpilogue, on_sm * memory_bytes / rates.sm_memory_bytes_per_us,
         on_sm * l2_bytes / rates.sm_bytes_per_us, l2_bytes * kLoadLatencyUs / plan.bytes_in_flight,
         count * memory_bytes / rates.memory_bytes_per_us, count * l2_bytes / rates.l2_bytes_per_us});
  };
  const double full = std::floor(plan.items / at_once);
  const double rest = plan.items - full * at_once;
  plan.microseconds = kStart + full * wave(at_once) + (rest > 0 ? wave(rest) : 0) + kEnd;
  plan.microseconds += ExchangeUs(size, splits, 64 / tile_rows, rates);
  return plan;
}

GemmPlan Plan4Bit(const GemmSize& size, int32_t splits, const GemmRates& rates) {
  GemmPlan best = {};
  for (const int32_t rows : {16, 32, 64}) {
    if (splits > 1 && size.segments > 1 && rows == 64) continue;  // registers
    const GemmPlan plan = Predict4Bit(size, rows, splits, rates);
    if (best.tile.rows == 0 || plan.microseconds < 0.99 * best.microseconds) best = plan;
  }
  return best;
}

namespace {

// The number of splits with the least time(rows, splits), summed over `rows`; more splits must gain 10%.
template <class Time>
int32_t BestSplits(int32_t steps, int32_t most, std::initializer_list<int32_t> rows, const Time& time) {
  constexpr double kGainWanted = 0.9;
  const auto time_of_all = [&](int32_t splits) {
    double sum = 0;
    for (const int32_t count : rows) sum += time(count, splits);
    return sum;
  };
  int32_t best = 1;
  double best_time = time_of_all(1);
  for (int32_t splits = 2; splits <= most && steps >= 4 * splits; splits *= 2) {
    const double split_time = time_of_all(splits);
    if (split_time < kGainWanted * best_time) {
      best = splits;
      best_time = split_time;
    }
  }
  return best;
}

}  // namespace

int32_t GemmSplits(int32_t n, int32_t k, int32_t element_bytes) {
  return BestSplits(
      k * element_bytes / kStepBytes, kMaxGemmSplits, {8, 32, 128}, [&](int32_t rows, int32_t splits) {
        return PlanGemm({.n = n, .k = k, .element_bytes = element_bytes, .rows = rows}, splits).microseconds;
      });
}

int32_t Splits4Bit(int32_t n, int32_t k, const WeightFormat& format) {
  constexpr int32_t kMostTiles = 256;  // more tiles fill a device, and their partial sums would be large
  if (Layout4Bit{n, k, format.columns}.tiles() > kMostTiles) return 1;
  return BestSplits((k + kBlock4Inputs - 1) / kBlock4Inputs, kMaxGemmSplits, {1, 8, 32},
                    [&](int32_t rows, int32_t splits) {
                      return Plan4Bit({.n = n, .k = k, .rows = rows, .format = format}, splits).microseconds;
                    });
}

int32_t SegmentShares(const GemmSize& size, const GemmRates& rates) {
  const bool four_bits = Is4Bit(size.format);
  const int32_t steps = four_bits ? size.k / kBlock4Inputs : Steps(size);
  return BestSplits(steps, size.segments, {size.rows}, [&](int32_t, int32_t splits) {
    return (four_bits ? Plan4Bit(size, splits, rates) : PlanGemm(size, splits, rates)).microseconds;
  });
}

}  // namespace foredraft::cuda
