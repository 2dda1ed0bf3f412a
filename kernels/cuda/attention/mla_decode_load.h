#pragma once

// How much work mla_decode's schedule gives a device, and the time predicted for it. Plain C++ for tests and
// benchmarks; no kernel reads it.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention/mla_decode_schedule.h"

namespace foredraft::cuda {

// Bytes of keys that a block of the Hopper kernel has in flight: two tiles of 64 rows of 576 BF16.
inline constexpr int32_t kHopperDecodeBytesInFlight = 2 * kKeyTile * 576 * 2;
// Bytes of keys that a block of the kernel with FP8 products has in flight: three tiles of FP8 rows.
inline constexpr int32_t kFp8DecodeBytesInFlight = 3 * kKeyTile * (512 + 16 + 2 * 64);

// The work of one launch. Counts of splits, tiles and partials are of one tile of heads.
struct DecodeLoad {
  int32_t head_tiles = 0;
  int32_t splits = 0;
  int64_t tiles = 0;
  int32_t blocks = 0;          // of the grid
  int32_t busy_blocks = 0;     // with at least one split
  int32_t partials = 0;        // results that CombineSplits merges
  int32_t row_partials = 0;    // of the row with the most
  int32_t busiest_tiles = 0;   // tiles of the thread block with the most work
  int32_t busiest_splits = 0;  // splits of that block

  // Mean tiles of all blocks over those of the busiest.
  double balance() const { return double(tiles) * head_tiles / blocks / busiest_tiles; }
};

// The load of rows at `positions` (-1: idle). Each attends [first_position, its own]. `blocks` fit on the
// device.
inline DecodeLoad LoadOf(std::span<const int32_t> positions, int32_t first_position, int32_t head_tiles,
                         int32_t max_splits, int64_t blocks) {
  const int32_t rows = static_cast<int32_t>(positions.size());
  DecodeGrid grid = {rows, GroupCount(blocks, head_tiles, rows, max_splits), max_splits, 0};
  std::vector<PlacedRow> placed;
  for (int32_t row = 0; row < rows; ++row) {
    placed.push_back({row, grid.cost, SplitsOf(first_position, positions[row])});
    grid.cost += placed.back().splits.cost();
  }
  std::vector<int32_t> row_partials(rows);
  DecodeLoad load = {.head_tiles = head_tiles, .blocks = grid.groups * head_tiles};
  for (int32_t group = 0; group < grid.groups; ++group) {
    int32_t tiles = 0, splits = 0;
    for (const PlacedRow& row : placed) {
      const RowPart part = PartOf(grid, group, row);
      if (part.begin >= part.end) continue;
      splits += part.end - part.begin;
      tiles += (part.end - part.begin) * row.splits.len / kKeyTile;
      if (part.end == row.splits.count) tiles += row.splits.tiles - row.splits.len / kKeyTile;
      if (part.partial >= 0) row_partials[row.row] += part.begin == 0 ? 1 : part.end - part.begin;
    }
    load.splits += splits;
    load.tiles += tiles;
    if (splits > 0) load.busy_blocks += head_tiles;
    if (tiles > load.busiest_tiles) {
      load.busiest_tiles = tiles;
      load.busiest_splits = splits;
    }
  }
  for (const int32_t count : row_partials) {
    load.partials += count;
    load.row_partials = std::max(load.row_partials, count);
  }
  return load;
}

// Seconds of the parts of a launch.
struct DecodeRates {
  double tile;         // a tile of 64 keys and 64 heads
  double split;        // the end of a split: its merge or its partial result
  double merge_round;  // CombineSplits' loads of kCombineAhead results: one latency
  double launch;       // before the first tile and after the last, of both kernels
  double bytes_per_second;
};
inline constexpr int32_t kCombineAhead = 4;  // partial results whose loads CombineSplits has in flight

// Predicted time: of the busiest block's products, or of reading `key_bytes` from memory if that is longer;
// then of the merge, by its latency or its bytes.
inline double DecodeSeconds(const DecodeLoad& load, double key_bytes, const DecodeRates& rates) {
  constexpr double kPartialBytes = 64 * 512 * 4;
  const double products = load.busiest_tiles * rates.tile + load.busiest_splits * rates.split;
  const double merge_bytes = double(load.partials) * load.head_tiles * kPartialBytes;
  const int32_t rounds = (load.row_partials + kCombineAhead - 1) / kCombineAhead;
  return rates.launch + std::max(products, key_bytes / rates.bytes_per_second) +
         std::max(rounds * rates.merge_round, merge_bytes / rates.bytes_per_second);
}

}  // namespace foredraft::cuda
