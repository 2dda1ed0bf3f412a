#pragma once

// Pages of the KV cache as TMA brings them to mla_decode's kernels for Hopper: 64 rows at a time, or where
// pages are smaller, a page.

#include <cstdint>

#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/common/ptx_cluster.h"
#include "kernels/tensor.h"

namespace foredraft::cuda::hopper_decode {

// Whether TMA can load a layer's pages: it loads whole ones, and the swizzle pattern repeats every 8 rows.
inline bool LoadsPages(const KvLayer& layer) {
  const int32_t page = layer.tokens_per_block;
  return page % kKeyTile == 0 || (page % 8 == 0 && kKeyTile % page == 0);
}
// Rows per load.
inline int32_t PageRows(const KvLayer& layer) {
  return layer.tokens_per_block < kKeyTile ? layer.tokens_per_block : kKeyTile;
}

// Number of pages of a tile with positions up to last_position; later pages may be unmapped.
__device__ __forceinline__ int TilePages(int32_t page_rows, int32_t tile, int32_t last_position) {
  const int32_t rows = min(kKeyTile, last_position + 1 - tile * kKeyTile);
  return (rows + page_rows - 1) / page_rows;
}

// Where the pages of one slot are.
struct SlotPages {
  const int32_t* table;
  int32_t tokens_per_block;
  int32_t page_rows;

  // The cache row at which this lane's page of a tile begins; 0 past last_position. Looked up a tile ahead,
  // to hide the latency of the block table.
  __device__ __forceinline__ int32_t PageRow(int32_t tile, int32_t last_position) const {
    const int32_t page = static_cast<int32_t>(threadIdx.x % kWarpLanes);
    if (page >= TilePages(page_rows, tile, last_position)) return 0;
    const int32_t position = tile * kKeyTile + page * page_rows;
    return table[position / tokens_per_block] * tokens_per_block + position % tokens_per_block;
  }
};
__device__ __forceinline__ SlotPages PagesOfSlot(const KvLayer& layer, int32_t slot, int32_t page_rows) {
  return {layer.block_tables + static_cast<int64_t>(slot) * layer.table_stride, layer.tokens_per_block,
          page_rows};
}

// Announces a load of `bytes` bytes, which all blocks of the cluster wait for.
template <int kBlocks>
__device__ __forceinline__ void ExpectLoad(Mbarrier& full, uint32_t bytes) {
  if constexpr (kBlocks == 1) {
    MbarrierArriveExpectTx(full, bytes);
  } else {
#pragma unroll
    for (uint32_t block = 0; block < kBlocks; ++block) MbarrierArriveExpectTxAt(full, block, bytes);
  }
}

// TmaLoad into all blocks of the cluster.
template <int kBlocks>
__device__ __forceinline__ void LoadForAll(void* to, const TensorMap& tensor, int32_t row, int32_t chunk,
                                           Mbarrier& full, uint64_t policy) {
  if constexpr (kBlocks == 1) {
    TmaLoad(to, tensor, 0, row, chunk, full, policy);
  } else {
    TmaLoadMulticast(to, tensor, 0, row, chunk, full, (1 << kBlocks) - 1, policy);
  }
}

}  // namespace foredraft::cuda::hopper_decode
