#pragma once

// The work of the GEMM kernels; gemm_item_search.h has how a block finds its part. A work item is one output
// tile of one group (an expert, a head, or all of a plain GEMM), or a split of k of it. Row counts of groups
// may be in device memory, so every block computes the same prefix sum of row tiles and takes every
// gridDim.x-th item. The assignment of items to blocks changes no bits.
//
// Order: group, tile of outputs, tile of rows, split innermost. Items that are near each other share a weight
// tile, so it is read from memory once.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace foredraft::cuda {

inline constexpr int32_t kMaxGroups = 512;

struct GemmItem {
  int32_t group;
  int32_t tile_n;  // tile of outputs
  int32_t first_row;
  int32_t end_row;  // of the tile
  int32_t tile;     // index among all tiles
  int32_t split;    // of k; 0 unless k is split
};

// The rows of group g: [offsets[g], offsets[g + 1]), or [0, rows) for every group if offsets is null.
struct GroupRowRanges {
  const int32_t* offsets;
  int32_t rows;
  int32_t groups;

  __device__ int32_t begin(int32_t group) const { return offsets != nullptr ? offsets[group] : 0; }
  __device__ int32_t end(int32_t group) const { return offsets != nullptr ? offsets[group + 1] : rows; }
};

// Tiles of rows of all groups; with row counts on the device, the most there may be.
inline int64_t RowTiles(const GroupRowRanges& ranges, int32_t tile_rows) {
  const int64_t full_tiles = (ranges.rows + tile_rows - 1) / tile_rows;
  return ranges.offsets != nullptr ? std::min<int64_t>(ranges.rows, full_tiles + ranges.groups)
                                   : full_tiles * ranges.groups;
}

// The grid of a launch: at most `resident` blocks. Kernels count items in 32 bits.
inline dim3 ItemGrid(int64_t items, int64_t resident) {
  CHECK_LT(items, int64_t{1} << 31);
  return dim3(static_cast<uint32_t>(std::min(items, resident)));
}

}  // namespace foredraft::cuda
