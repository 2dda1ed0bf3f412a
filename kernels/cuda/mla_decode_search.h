#ifndef FOREDRAFT_KERNELS_CUDA_MLA_DECODE_SEARCH_H_
#define FOREDRAFT_KERNELS_CUDA_MLA_DECODE_SEARCH_H_

// Which work item a block has: prefix sums over the rows' splits, made by every warp for itself.

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/mla_decode.h"

namespace foredraft::cuda {

// How many splits row `row` has; 0: idle.
__device__ __forceinline__ int32_t RowSplits(const MlaDecodeParams& op, int32_t row) {
  const int32_t last = op.index.positions[row];
  if (op.index.slots[row] < 0 || last < op.first_position) return 0;
  return last / kSplitLen - op.first_position / kSplitLen + 1;
}

// Tiles of keys, counted from position 0, that a split has for a row: [begin, end).
struct TileRange {
  int32_t begin;
  int32_t end;
};
__device__ __forceinline__ TileRange SplitTiles(const MlaDecodeParams& op, int32_t split,
                                                int32_t last_position) {
  constexpr int32_t kTiles = kSplitLen / kKeyTile;
  return {max(split * kTiles, op.first_position / kKeyTile),
          min((split + 1) * kTiles, last_position / kKeyTile + 1)};
}

// Over the warp's lanes, the lane's own included.
__device__ __forceinline__ int32_t WarpPrefixSum(int32_t x) {
  const int lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (int step = 1; step < kWarpLanes; step *= 2) {
    const int32_t below = __shfl_up_sync(kAllLanes, x, step);
    if (lane >= step) x += below;
  }
  return x;
}

// Where a warp's search stands: everything before 32 rows.
struct ItemCursor {
  int32_t first_row = 0;
  int32_t items_before = 0;
  int32_t partials_before = 0;
};

// Item number `number`, counted over the rows in order; within a row by split, then head tile, so that
// neighbours read the same keys. False: there are not so many. All lanes of a warp ask for the same number,
// which never falls from one call with a cursor to the next.
__device__ __forceinline__ bool FindItem(const DecodePlan& p, int32_t number, ItemCursor& cursor,
                                         DecodeItem* item) {
  for (; cursor.first_row < p.op.index.rows; cursor.first_row += kWarpLanes) {
    const int32_t row = cursor.first_row + static_cast<int32_t>(threadIdx.x % kWarpLanes);
    const int32_t splits = row < p.op.index.rows ? RowSplits(p.op, row) : 0;
    const int32_t wanted = splits > 1 ? splits * p.head_tiles : 0;
    const int32_t partials_end = cursor.partials_before + WarpPrefixSum(wanted);
    const bool apart = wanted > 0 && partials_end <= p.partial_count;
    const int32_t count = splits == 0 ? 0 : apart ? wanted : p.head_tiles;
    const int32_t items_end = WarpPrefixSum(count);
    const int32_t all_items = __shfl_sync(kAllLanes, items_end, kWarpLanes - 1);
    if (number < cursor.items_before + all_items) {
      const int32_t place = number - cursor.items_before;
      const int lane = __popc(__ballot_sync(kAllLanes, items_end <= place));  // of the row it belongs to
      const int32_t offset = place - __shfl_sync(kAllLanes, items_end - count, lane);
      const int32_t row_splits = __shfl_sync(kAllLanes, splits, lane);
      const int32_t row_partial = __shfl_sync(kAllLanes, apart ? partials_end - wanted : -1, lane);
      const bool row_apart = row_partial >= 0;
      *item = {.row = cursor.first_row + lane,
               .head_tile = offset % p.head_tiles,
               .first_split = p.op.first_position / kSplitLen + offset / p.head_tiles,
               .split_count = row_apart ? 1 : row_splits,
               .partial = row_apart ? row_partial + offset : -1};
      if (offset == 0 && threadIdx.x == 0) p.row_partials[item->row] = row_partial;
      return true;
    }
    cursor.items_before += all_items;
    cursor.partials_before = __shfl_sync(kAllLanes, partials_end, kWarpLanes - 1);
  }
  return false;
}

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_MLA_DECODE_SEARCH_H_
