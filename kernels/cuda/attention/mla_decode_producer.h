#pragma once

// The producer of mla_decode's kernel for Hopper (mla_decode_hopper.cu), which finds the items and brings
// their queries and keys.

#include <type_traits>

#include "kernels/cuda/attention/mla_decode_hopper.h"
#include "kernels/cuda/attention/mla_decode_pages.h"
#include "kernels/cuda/attention/mla_decode_row_producers.h"

namespace foredraft::cuda::hopper_decode {

// ---- pages of BF16 rows ----

// Called by all lanes; the first one copies. `page_row` is PageRow of this tile. A page that fills a tile
// takes three requests, because a thread that starts one per chunk is slower than the consumers. Smaller
// pages take one per chunk, because a box of several chunks would place them side by side in shared memory.
template <int kBlocks>
__device__ __forceinline__ void CopyTile(const HopperDecodePlan& p, HopperDecodeShared& shared, int32_t pages,
                                         int32_t page_row, const Pipeline& pipeline, uint32_t rank,
                                         uint64_t policy) {
  const bool leads = threadIdx.x % kWarpLanes == 0;
  const int box_chunks = p.box_chunks();
  for (int load = 0; load < kLoads; ++load) {
    if (BringerOf(pipeline.stage, load, kBlocks) != rank) continue;
    Mbarrier& full = shared.full[pipeline.stage][load];
    if (leads) {
      MbarrierWait(shared.empty[pipeline.stage][load], pipeline.parity ^ 1, "mla stage empty");
      ExpectLoad<kBlocks>(full, pages * p.page_rows * kTileRowBytes * kLoadChunks);
    }
    for (int32_t page = 0; page < pages; ++page) {
      const int32_t row = __shfl_sync(kAllLanes, page_row, page);
      if (!leads) continue;
      for (int chunk = load * kLoadChunks; chunk < (load + 1) * kLoadChunks; chunk += box_chunks) {
        bf16* const to = shared.keys[pipeline.stage][chunk].elements + page * p.page_rows * kChunkColumns;
        LoadForAll<kBlocks>(to, p.cache, row, chunk, full, policy);
      }
    }
  }
}

__device__ __forceinline__ void CopyQuery(const HopperDecodePlan& p, HopperDecodeShared& shared,
                                          const DecodeItem& item, uint64_t policy) {
  MbarrierArriveExpectTx(shared.query_full, sizeof(shared.query));
  for (int chunk = 0; chunk < kChunks - 1; ++chunk) {
    TmaLoad(&shared.query[chunk], p.q_lat, chunk * kChunkColumns, item.head_tile * kHeads, item.row,
            shared.query_full, policy);
  }
  TmaLoad(&shared.query[kChunks - 1], p.q, p.plan.op.head_dim - kChunkColumns, item.head_tile * kHeads,
          item.row, shared.query_full, policy);
}

// One warp fills the first stage and one the second: neither waits for the other's stage.
template <int kBlocks>
__device__ __forceinline__ void CopyKeys(const HopperDecodePlan& p, HopperDecodeShared& shared,
                                         const DecodeItem& item, Pipeline& pipeline, uint32_t rank,
                                         uint64_t policy) {
  const int stage = (threadIdx.x - kConsumerThreads) / kWarpLanes;
  const int32_t last_position = item.last_place;  // no row has a list
  const SlotPages pages = PagesOfSlot(p.plan.op.layer, p.plan.op.index.slots[item.row], p.page_rows);
  const auto [begin, end] = ItemTiles(p.plan.op, item);
  int32_t row = pages.PageRow(pipeline.stage == stage ? begin : begin + 1, last_position);
  for (int32_t tile = begin; tile < end; ++tile, pipeline.Next()) {
    if (pipeline.stage != stage) continue;
    const int32_t next = pages.PageRow(tile + kStages, last_position);
    CopyTile<kBlocks>(p, shared, TilePages(p.page_rows, tile, last_position), row, pipeline, rank, policy);
    row = next;
  }
  __syncwarp();
}

// ---- the producer ----

// Finds the items, hands each to the consumers with its query, and brings its keys, or this block's part of
// them. For pages one warp per stage calls it, for rows all of the producer's warps do; each warp finds the
// items for itself.
template <KeySource source, int kBlocks>
__device__ __forceinline__ void Produce(const HopperDecodePlan& p, HopperDecodeShared& shared) {
  const bool leads = threadIdx.x == kConsumerThreads;
  const uint64_t policy = CachePolicy<CacheHint::kEvictFirst>();
  const uint32_t rank = kBlocks > 1 ? ClusterRank() : 0;
  std::conditional_t<source == KeySource::kFp8Rows, Fp8KeyProducer<kBlocks>, RowKeyProducer> rows(p.plan.op,
                                                                                                  shared);
  Pipeline pipeline;
  ItemCursor cursor = StartItems(p.plan);
  for (uint32_t parity = 0;; parity ^= 1) {
    const DecodeItem item = NextItem(p.plan, cursor);
    if (leads) {
      MbarrierWait(shared.query_empty, parity ^ 1, "mla query empty");
      shared.items[parity] = item;
      if (item.row < 0) MbarrierArrive(shared.query_full);
      if (item.row >= 0) CopyQuery(p, shared, item, policy);
    }
    if (item.row < 0) return;
    __syncwarp();
    if constexpr (source == KeySource::kPages) {
      CopyKeys<kBlocks>(p, shared, item, pipeline, rank, policy);
    } else {
      rows.Produce(item, pipeline);
    }
  }
}

}  // namespace foredraft::cuda::hopper_decode
