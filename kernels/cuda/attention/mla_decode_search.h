#pragma once

// The scheduler of mla_decode: a warp of each block finds the block's work items from prefix sums over the
// rows' costs (mla_decode_schedule.h).

#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/attention/mla_decode.h"

namespace foredraft::cuda {

// The last place of row `row`; -1 if it is idle.
__device__ __forceinline__ int32_t LastPlaceOf(const MlaDecodeParams& op, int32_t row) {
  return op.index.slots[row] < 0 ? -1 : op.last_place(row);
}
// The splits of row `row`; none if it is idle.
__device__ __forceinline__ RowSplits SplitsOfRow(const MlaDecodeParams& op, int32_t row) {
  return SplitsOf(op.first_position, LastPlaceOf(op, row));
}

// The key tiles [begin, end) of a split that a row attends, counted from place 0.
struct TileRange {
  int32_t begin;
  int32_t end;
};
__device__ __forceinline__ TileRange SplitTiles(const MlaDecodeParams& op, int32_t split_len, int32_t split,
                                                int32_t last_place) {
  const int32_t tiles = split_len / kKeyTile;
  return {max(split * tiles, op.first_position / kKeyTile),
          min((split + 1) * tiles, last_place / kKeyTile + 1)};
}

// Inclusive prefix sum over the lanes of the warp.
__device__ __forceinline__ int32_t WarpPrefixSum(int32_t x) {
  const int lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (int step = 1; step < kWarpLanes; step *= 2) {
    const int32_t below = __shfl_up_sync(kAllLanes, x, step);
    if (lane >= step) x += below;
  }
  return x;
}

// The cost of all rows, returned to every lane.
__device__ __forceinline__ int32_t TotalCost(const MlaDecodeParams& op) {
  int32_t cost = 0;
  for (int32_t row = threadIdx.x % kWarpLanes; row < op.index.rows; row += kWarpLanes) {
    cost += SplitsOfRow(op, row).cost();
  }
#pragma unroll
  for (int step = kWarpLanes / 2; step > 0; step /= 2) cost += __shfl_xor_sync(kAllLanes, cost, step);
  return cost;
}

// The state of a block's search.
struct ItemCursor {
  int32_t cost;       // of all rows
  int32_t row;        // the next one to look at
  int32_t row_begin;  // the cost of all rows before it
};

// Called by all lanes of a warp, one of each block. Records the cost of all rows for CombineSplits.
__device__ __forceinline__ ItemCursor StartItems(const DecodePlan& p) {
  const int32_t cost = TotalCost(p.op);
  if (blockIdx.x == 0 && threadIdx.x % kWarpLanes == 0) p.row_begins[p.op.index.rows] = cost;
  return {cost, 0, 0};
}

// This block's next item, in the order of the rows; its row is -1 if there is none. Called by all lanes of a
// warp. For CombineSplits, a group's first block records where each row begins that continues in a later
// share.
__device__ __forceinline__ DecodeItem NextItem(const DecodePlan& p, ItemCursor& cursor) {
  const DecodeGrid grid = {p.op.index.rows, p.groups, p.max_splits, cursor.cost};
  const int32_t group = static_cast<int32_t>(blockIdx.x) / p.head_tiles;
  const int32_t head_tile = static_cast<int32_t>(blockIdx.x) % p.head_tiles;
  const int32_t share_end = ShareOf(grid, group).end;
  while (cursor.row_begin < share_end) {
    const int32_t lane_row = cursor.row + static_cast<int32_t>(threadIdx.x % kWarpLanes);
    const int32_t last_place = lane_row < grid.rows ? LastPlaceOf(p.op, lane_row) : -1;
    const RowSplits splits = lane_row < grid.rows ? SplitsOf(p.op.first_position, last_place) : RowSplits{};
    const int32_t row_end = cursor.row_begin + WarpPrefixSum(splits.cost());
    const PlacedRow placed = {lane_row, row_end - splits.cost(), splits};
    const RowPart part = PartOf(grid, group, placed);
    const unsigned found = __ballot_sync(kAllLanes, part.begin < part.end);
    const int lane = found != 0 ? __ffs(found) - 1 : kWarpLanes - 1;
    cursor.row += lane + 1;
    cursor.row_begin = __shfl_sync(kAllLanes, row_end, lane);
    if (found == 0) continue;
    const int32_t row = cursor.row - 1;
    const int32_t begin = __shfl_sync(kAllLanes, part.begin, lane);
    const int32_t partial = __shfl_sync(kAllLanes, part.partial, lane);
    if (begin == 0 && head_tile == 0 && lane_row == row) p.row_begins[row] = partial < 0 ? -1 : placed.begin;
    return {.row = row,
            .head_tile = head_tile,
            .last_place = __shfl_sync(kAllLanes, last_place, lane),
            .split_len = __shfl_sync(kAllLanes, splits.len, lane),
            .first_split = __shfl_sync(kAllLanes, splits.first, lane) + begin,
            .split_count = __shfl_sync(kAllLanes, part.end, lane) - begin,
            .begins_row = begin == 0,
            .partial = partial < 0 ? -1 : partial * p.head_tiles + head_tile};
  }
  return {.row = -1};
}

}  // namespace foredraft::cuda
