#pragma once

// How a block finds its work items (gemm_items.h). Device code.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/gemm/gemm_items.h"

namespace foredraft::cuda {

// tile_starts[g] = row tiles of the groups before g, [groups + 1], in shared memory. Called by all lanes of
// one warp.
inline __device__ void FillTileStarts(const GroupRowRanges& ranges, int32_t rows_per_tile,
                                      int32_t* tile_starts) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  int32_t total = 0;
  for (int32_t first = 0; first < ranges.groups; first += 32) {
    const int32_t group = first + lane;
    int32_t sum = 0;
    if (group < ranges.groups) {
      sum = (ranges.end(group) - ranges.begin(group) + rows_per_tile - 1) / rows_per_tile;
    }
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t before = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += before;
    }
    if (group < ranges.groups) tile_starts[group + 1] = total + sum;
    total += __shfl_sync(0xffffffffu, sum, 31);
  }
  if (lane == 0) tile_starts[0] = 0;
}

// Item `index`. A block has few items, of some hundred cycles each, so this divides only where it must.
inline __device__ GemmItem FindItem(const GroupRowRanges& ranges, const int32_t* tile_starts,
                                    int32_t rows_per_tile, int32_t n_tiles, int32_t splits, uint32_t index) {
  const uint32_t tile = splits > 1 ? index / splits : index;
  int32_t group = 0;
  if (ranges.offsets == nullptr) {
    if (ranges.groups > 1) group = static_cast<int32_t>(tile / (tile_starts[1] * n_tiles));
  } else {
    // The last group that starts at or before the item; this skips groups without rows.
    int32_t high = ranges.groups - 1;
    while (group < high) {
      const int32_t middle = (group + high + 1) / 2;
      if (static_cast<uint32_t>(tile_starts[middle] * n_tiles) <= tile) {
        group = middle;
      } else {
        high = middle - 1;
      }
    }
  }
  const uint32_t row_tiles = tile_starts[group + 1] - tile_starts[group];
  const uint32_t inside = tile - tile_starts[group] * n_tiles;
  const uint32_t tile_n = row_tiles > 1 ? inside / row_tiles : inside;
  const int32_t first_row =
      ranges.begin(group) + static_cast<int32_t>(inside - tile_n * row_tiles) * rows_per_tile;
  return {.group = group,
          .tile_n = static_cast<int32_t>(tile_n),
          .first_row = first_row,
          .end_row = min(ranges.end(group), first_row + rows_per_tile),
          .tile = static_cast<int32_t>(tile),
          .split = static_cast<int32_t>(index - tile * splits)};
}

}  // namespace foredraft::cuda
