#ifndef FOREDRAFT_KERNELS_CUDA_MLA_DECODE_SEARCH_H_
#define FOREDRAFT_KERNELS_CUDA_MLA_DECODE_SEARCH_H_

// Which work item a block has: prefix sums over the rows' splits, made by every block for itself.

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/mla_decode.h"

namespace foredraft::cuda {

// How many splits row `row` has; 0: idle.
__device__ __forceinline__ int RowSplits(const MlaDecodeParams& op, int row) {
  const int last = op.index.positions[row];
  if (op.index.slots[row] < 0 || last < op.first_position) return 0;
  return last / kSplitLen - op.first_position / kSplitLen + 1;
}

struct ItemSearch {
  int32_t warp_sums[2][32];  // double-buffered: one scan's readers may be behind the next one's writers
  DecodeItem found;
};

// Inclusive prefix sum over the block's threads; `total` is everyone's. Every thread takes part.
template <int kWarps>
__device__ __forceinline__ int BlockPrefixSum(int x, int32_t (&warp_sums)[32], int* total) {
  const int lane = threadIdx.x % kWarpLanes;
  const int warp = threadIdx.x / kWarpLanes;
  for (int step = 1; step < kWarpLanes; step *= 2) {
    const int below = __shfl_up_sync(kAllLanes, x, step);
    if (lane >= step) x += below;
  }
  if (lane == kWarpLanes - 1) warp_sums[warp] = x;
  __syncthreads();
  *total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) x += warp_sums[w];
    *total += warp_sums[w];
  }
  return x;
}

// Item number `number`, counted over the rows in order; within a row by split, then head tile, so that
// neighbours read the same keys. False: there are not so many. Every thread of the block calls it with the
// same number.
template <int kWarps>
__device__ bool FindItem(const DecodePlan& p, int64_t number, ItemSearch& search, DecodeItem* item) {
  int64_t items_before = 0;
  int32_t partials_before = 0;
  for (int32_t base = 0; base < p.op.index.rows; base += kWarps * kWarpLanes) {
    const int32_t row = base + static_cast<int32_t>(threadIdx.x);
    const int splits = row < p.op.index.rows ? RowSplits(p.op, row) : 0;
    const int wanted = splits > 1 ? splits * p.head_tiles : 0;
    int all_wanted = 0;
    const int partials_end =
        partials_before + BlockPrefixSum<kWarps>(wanted, search.warp_sums[0], &all_wanted);
    const bool apart = wanted > 0 && partials_end <= p.partial_count;
    const int count = splits == 0 ? 0 : apart ? wanted : p.head_tiles;
    int all_items = 0;
    const int64_t end = items_before + BlockPrefixSum<kWarps>(count, search.warp_sums[1], &all_items);
    const int64_t begin = end - count;
    if (begin <= number && number < end) {
      const int32_t offset = static_cast<int32_t>(number - begin);
      const int32_t first = p.op.first_position / kSplitLen;
      search.found = {.row = row,
                      .head_tile = offset % p.head_tiles,
                      .first_split = first + offset / p.head_tiles,
                      .split_count = apart ? 1 : splits,
                      .partial = apart ? partials_end - wanted + offset : -1};
      if (offset == 0) p.row_partials[row] = apart ? partials_end - wanted : -1;
    }
    items_before += all_items;
    partials_before += all_wanted;
    if (number < items_before) break;
  }
  if (number >= items_before) return false;
  __syncthreads();
  *item = search.found;
  __syncthreads();
  return true;
}

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_MLA_DECODE_SEARCH_H_
