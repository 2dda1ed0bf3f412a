#include "kernels/cuda/gemm_plan.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace foredraft::cuda {
namespace {

constexpr int32_t kStepBytes = 128;                  // of each row
constexpr int32_t kWarpgroupRows = 64;               // of a wgmma
constexpr int32_t kGateUpOutputs = 256;              // 128 of gate, 128 of up
constexpr int32_t kGateUpExchangeBytes = 32 * 1024;  // shared memory besides the stages

// Microseconds. Start: the pipeline's first bytes. End: the last stores. A launch that follows another one
// directly costs kLaunch more.
constexpr double kStart = 1.2;
constexpr double kEnd = 0.5;
constexpr double kEpilogue = 0.3;
constexpr double kLaunch = 1.0;
constexpr double kExchange = 1.5;  // partial sums: store, fence, count, load

// Cycles.
constexpr double kPromotion = 110;  // besides one multiply-add per sum
constexpr double kStepIssue = 90;   // waits, descriptors, release of the stage

struct Groups {
  double active;     // expected, with at least one row
  double row_tiles;  // expected, of all groups
};

// Rows of a random group are Poisson distributed.
Groups ExpectedTiles(const GemmSize& size, int32_t tile_rows) {
  if (!size.ragged) {
    const double tiles = (size.rows + tile_rows - 1) / tile_rows;
    return {static_cast<double>(size.groups), tiles * size.groups};
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
    tiles += probability * ((rows + tile_rows - 1) / tile_rows);
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

double StepUs(int32_t tile_rows, int32_t outputs, bool f8, const GemmRates& rates) {
  // A k group of 32 bytes takes outputs / 2 cycles, but at least those of reading its 64 rows.
  const bool pair = outputs == kGateUpOutputs;
  const int32_t group_outputs = pair ? outputs / 2 : outputs;
  const int32_t warpgroups = pair || tile_rows > kWarpgroupRows ? 2 : 1;
  const double wgmma = warpgroups * 4 * std::max(group_outputs / 2.0, 16.0);
  const double rest = f8 ? kPromotion + group_outputs / 2.0 : kStepIssue;
  const double loads = (tile_rows + outputs) * double{kStepBytes} / rates.sm_bytes_per_us;
  return std::max((std::max(wgmma, rest) + 10) / rates.cycles_per_us, loads);
}

int32_t Stages(GemmTile tile, int32_t other_bytes) {
  const int32_t rows = tile.outputs != kGateUpOutputs && tile.rows > kWarpgroupRows ? 128 : 64;
  return (kGemmSharedBudget - other_bytes) / GemmStageBytes(rows, tile.outputs);
}

int32_t Steps(const GemmSize& size) { return size.k * size.element_bytes / kStepBytes; }

// The rows of a tile if `rows` are spread over the fewest tiles of at most `most` rows.
int32_t EvenTileRows(int32_t rows, int32_t most) {
  const int32_t tiles = std::max((rows + most - 1) / most, 1);
  return std::max(((rows + tiles - 1) / tiles + 15) / 16 * 16, 16);
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
  plan.stages = Stages(tile, tile.outputs == kGateUpOutputs ? kGateUpExchangeBytes : 0);
  plan.bytes_in_flight = int64_t{plan.stages} * (tile.rows + tile.outputs) * kStepBytes;
  if (plan.items == 0) return plan;

  const ItemCost item = {
      .us = steps * StepUs(tile.rows, tile.outputs, size.element_bytes == 1, rates) + kEpilogue,
      .memory_bytes = item_row_bytes * size.n / tiles_n * groups.active / groups.row_tiles,
      .l2_bytes = item_row_bytes * (tile.rows + tile.outputs)};
  const double full = std::floor(plan.items / rates.multiprocessors);
  const double rest = plan.items - full * rates.multiprocessors;
  plan.microseconds = kStart + full * WaveUs(rates.multiprocessors, item, rates) + kEnd;
  if (rest > 0) plan.microseconds += WaveUs(rest, item, rates);
  if (splits > 1) {
    const double partial_bytes = 2.0 * sizeof(float) * splits * size.rows * size.n;
    plan.microseconds += kExchange + partial_bytes / rates.l2_bytes_per_us;
  }
  return plan;
}

GemmPlan PlanGemm(const GemmSize& size, int32_t splits, const GemmRates& rates) {
  GemmPlan best = {};
  ForTileRows(size, 128, [&](int32_t rows) {
    for (const int32_t outputs : {128, 64, 32, 16}) {
      if (splits > 1 && rows > kWarpgroupRows && outputs == 128) continue;
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
  // Two kernels are worth it for more than the prediction's error only.
  return PlanGateUp(size, rates).microseconds <=
         1.1 * (PlanGemm(size, 1, rates).microseconds + sums + silu_mul);
}

int32_t GemmSplits(int32_t n, int32_t k, int32_t element_bytes) {
  constexpr double kGainWanted = 0.9;
  const auto time = [&](int32_t splits) {
    double sum = 0;
    for (const int32_t rows : {8, 32, 128}) {
      sum += PlanGemm({.n = n, .k = k, .element_bytes = element_bytes, .rows = rows}, splits).microseconds;
    }
    return sum;
  };
  int32_t best = 1;
  double best_time = time(1);
  for (int32_t splits = 2; splits <= kMaxGemmSplits; splits *= 2) {
    if (k * element_bytes / kStepBytes < 4 * splits) break;
    const double split_time = time(splits);
    if (split_time < kGainWanted * best_time) {
      best = splits;
      best_time = split_time;
    }
  }
  return best;
}

}  // namespace foredraft::cuda
