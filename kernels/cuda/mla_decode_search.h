#ifndef FOREDRAFT_KERNELS_CUDA_MLA_DECODE_SEARCH_H_
#define FOREDRAFT_KERNELS_CUDA_MLA_DECODE_SEARCH_H_

// The scheduler of mla_decode: finds a block's work items from prefix sums over the rows' splits, computed by
// every warp.

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/mla_decode.h"

namespace foredraft::cuda {

// Number of splits of row `row`; 0 if it is idle.
__device__ __forceinline__ int32_t RowSplits(const MlaDecodeParams& op, int32_t row) {
  const int32_t last = op.index.positions[row];
  if (op.index.slots[row] < 0 || last < op.first_position) return 0;
  return last / kSplitLen - op.first_position / kSplitLen + 1;
}

// The key tiles [begin, end) of a split that a row attends, counted from position 0.
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

// The state of a warp's search: the totals before the current 32 rows.
struct ItemCursor {
  int32_t first_row = 0;
  int32_t items_before = 0;
  int32_t partials_before = 0;
};

// Finds item number `number`. Items are ordered by row, then split, then head tile, so that adjacent items
// read the same keys. Returns false if there are fewer items. All lanes of a warp pass the same number, and
// calls with one cursor pass ascending numbers.
__device__ __forceinline__ bool FindItem(const DecodePlan& p, int32_t number, ItemCursor& cursor,
                                         DecodeItem* item) {
  for (; cursor.first_row < p.op.index.rows; cursor.first_row += kWarpLanes) {
    const int32_t row = cursor.first_row + static_cast<int32_t>(threadIdx.x % kWarpLanes);
    const int32_t splits = row < p.op.index.rows ? RowSplits(p.op, row) : 0;
    const int32_t wanted = splits > 1 ? splits * p.head_tiles : 0;
    const int32_t partials_end = cursor.partials_before + WarpPrefixSum(wanted);
    const bool is_split = wanted > 0 && partials_end <= p.partial_count;
    const int32_t count = splits == 0 ? 0 : is_split ? wanted : p.head_tiles;
    const int32_t items_end = WarpPrefixSum(count);
    const int32_t all_items = __shfl_sync(kAllLanes, items_end, kWarpLanes - 1);
    if (number < cursor.items_before + all_items) {
      const int32_t index = number - cursor.items_before;
      const int lane = __popc(__ballot_sync(kAllLanes, items_end <= index));  // of the item's row
      const int32_t offset = index - __shfl_sync(kAllLanes, items_end - count, lane);
      const int32_t row_splits = __shfl_sync(kAllLanes, splits, lane);
      const int32_t row_partial = __shfl_sync(kAllLanes, is_split ? partials_end - wanted : -1, lane);
      const bool row_is_split = row_partial >= 0;
      *item = {.row = cursor.first_row + lane,
               .head_tile = offset % p.head_tiles,
               .first_split = p.op.first_position / kSplitLen + offset / p.head_tiles,
               .split_count = row_is_split ? 1 : row_splits,
               .partial = row_is_split ? row_partial + offset : -1};
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
