#pragma once

// The shared memory of mla_decode's kernel for Hopper (mla_decode_hopper.cu), and its producer, which finds
// the items and brings their queries and keys.

#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/attention/kv_row_load.h"
#include "kernels/cuda/attention/mla_decode.h"
#include "kernels/cuda/attention/mla_decode_load.h"
#include "kernels/cuda/attention/mla_decode_search.h"
#include "kernels/cuda/common/pipeline_state.h"
#include "kernels/cuda/common/ptx_attention.h"

namespace foredraft::cuda::hopper_decode {

inline constexpr int kHeads = 64;
inline constexpr int kLatent = 512;
inline constexpr int kChunkColumns = 64;  // of a swizzled tile: 128 bytes
inline constexpr int kChunks = 9;         // 512 + 64 columns
inline constexpr int kTmaChunks = 3;      // of a tile's BF16 keys, loaded together
inline constexpr int kValueChunks = 4;    // of a group
inline constexpr int kStages = 2;
inline constexpr int kGroupThreads = 128;
inline constexpr int kConsumerThreads = 2 * kGroupThreads;
inline constexpr int kConsumerWarps = kConsumerThreads / kWarpLanes;
inline constexpr int kProducerWarps = kGroupThreads / kWarpLanes;
inline constexpr int kThreads = kConsumerThreads + kGroupThreads;  // setmaxnreg applies to whole warpgroups

using Chunk = RowTile<64, kChunkColumns>;  // 64 heads or keys

struct HopperDecodePlan {
  DecodePlan plan;
  TensorMap q_lat;    // {latent, heads, rows}
  TensorMap q;        // {head_dim, heads, rows}
  TensorMap cache;    // {columns of a chunk, rows of all blocks, chunks}
  int32_t page_rows;  // rows per TMA load: tokens_per_block, at most a tile

  __host__ __device__ int box_chunks() const { return page_rows == kKeyTile ? kTmaChunks : 1; }
};

struct HopperDecodeShared {
  alignas(1024) Chunk query[kChunks];
  alignas(1024) Chunk keys[kStages][kChunks];
  alignas(1024) Chunk weights;  // of the tile's keys
  float tile_max[2][kHeads];    // of the raw scores of each group's keys
  float sums[4][kHeads];        // of the split's weights, per 16 keys of a tile
  float2 folded[kHeads];        // max, sum of the splits so far
  DecodeItem items[2];          // this one and the next, each full and empty with its query
  Mbarrier query_full, query_empty;
  Mbarrier full[kStages][kChunks];  // by the first chunk of a load: the scores start with the first
  Mbarrier empty[kStages];
};

static_assert(sizeof(HopperDecodeShared::keys) == kHopperDecodeBytesInFlight);
static_assert(sizeof(HopperDecodeShared) <= 227 * 1024, "the shared memory limit of a block");

using Pipeline = PipelineState<kStages>;

// ---- BF16 rows ----

// Number of pages of a tile with positions up to last_position; later pages may be unmapped.
__device__ __forceinline__ int TilePages(const HopperDecodePlan& p, int32_t tile, int32_t last_position) {
  const int32_t rows = min(kKeyTile, last_position + 1 - tile * kKeyTile);
  return (rows + p.page_rows - 1) / p.page_rows;
}

// The cache row at which this lane's page of a tile begins. Looked up a tile ahead, to hide the latency of
// the block table.
__device__ __forceinline__ int32_t PageRow(const HopperDecodePlan& p, const int32_t* table, int32_t tile,
                                           int32_t last_position) {
  const int32_t page = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  if (page >= TilePages(p, tile, last_position)) return 0;
  const int32_t position = tile * kKeyTile + page * p.page_rows;
  const int32_t tokens_per_block = p.plan.op.layer.tokens_per_block;
  return table[position / tokens_per_block] * tokens_per_block + position % tokens_per_block;
}

// Called by all lanes; the first one copies. `page_row` is PageRow of this tile. A page of a whole tile takes
// three requests: a thread that starts one for each chunk is slower than the consumers. Smaller pages take
// one for each chunk, because a box of several would have them side by side in shared memory.
__device__ __forceinline__ void CopyTile(const HopperDecodePlan& p, HopperDecodeShared& shared, int32_t pages,
                                         int32_t page_row, const Pipeline& pipeline, uint64_t policy) {
  const bool leads = threadIdx.x % kWarpLanes == 0;
  Mbarrier(&full)[kChunks] = shared.full[pipeline.stage];
  if (leads) {
    MbarrierWait(shared.empty[pipeline.stage], pipeline.parity ^ 1, "mla stage empty");
    for (int chunk = 0; chunk < kChunks; chunk += kTmaChunks) {
      MbarrierArriveExpectTx(full[chunk], pages * p.page_rows * kTileRowBytes * kTmaChunks);
    }
  }
  const int box_chunks = p.box_chunks();
  for (int32_t page = 0; page < pages; ++page) {
    const int32_t row = __shfl_sync(kAllLanes, page_row, page);
    if (!leads) continue;
    for (int chunk = 0; chunk < kChunks; chunk += box_chunks) {
      TmaLoad(shared.keys[pipeline.stage][chunk].elements + page * p.page_rows * kChunkColumns, p.cache, 0,
              row, chunk, full[chunk / kTmaChunks * kTmaChunks], policy);
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

// The key tiles of an item: those of adjacent splits are adjacent.
__device__ __forceinline__ TileRange ItemTiles(const MlaDecodeParams& op, const DecodeItem& item,
                                               int32_t last_position) {
  const int32_t last_split = item.first_split + item.split_count - 1;
  return {SplitTiles(op, item.split_len, item.first_split, last_position).begin,
          SplitTiles(op, item.split_len, last_split, last_position).end};
}

__device__ __forceinline__ void CopyKeys(const HopperDecodePlan& p, HopperDecodeShared& shared,
                                         const DecodeItem& item, Pipeline& pipeline, uint64_t policy) {
  const int32_t last_position = p.plan.op.index.positions[item.row];
  const KvLayer& layer = p.plan.op.layer;
  const int32_t* table =
      layer.block_tables + static_cast<int64_t>(p.plan.op.index.slots[item.row]) * layer.table_stride;
  const auto [begin, end] = ItemTiles(p.plan.op, item, last_position);
  int32_t row = PageRow(p, table, begin, last_position);
  for (int32_t tile = begin; tile < end; ++tile, pipeline.Next()) {
    const int32_t next = tile + 1 < end ? PageRow(p, table, tile + 1, last_position) : 0;
    CopyTile(p, shared, TilePages(p, tile, last_position), row, pipeline, policy);
    row = next;
  }
  __syncwarp();
}

// ---- FP8 rows ----

// Decodes tiles of keys: a thread has the same 16 of each chunk's 64 columns of two keys, 32 keys apart. A
// step is two chunks, a group of 128 columns; the last step is the RoPE chunk. As soon as a part of a step is
// stored, the same part of the next step is loaded. These loads keep 8 KB in flight, too little for the
// latency of device memory, so whole rows are fetched into the L2 cache kAhead tiles before.
class Fp8KeyProducer {
 public:
  __device__ __forceinline__ Fp8KeyProducer(const MlaDecodeParams& op, HopperDecodeShared& shared)
      : op_(op), shared_(shared), thread_(threadIdx.x % kGroupThreads) {}

  __device__ __forceinline__ void Produce(const DecodeItem& item, Pipeline& pipeline) {
    const int32_t last_position = op_.index.positions[item.row];
    const int32_t slot = op_.index.slots[item.row];
    const auto [begin, end] = ItemTiles(op_, item, last_position);
    for (int32_t tile = begin + 1; tile < min(begin + kAhead, end); ++tile)
      Prefetch(slot, tile, last_position);
    Keys keys = Locate(slot, begin, last_position);
    Scales scales = LoadScales(keys, 0);
    Part parts[2] = {Load(keys, 0, 0), Load(keys, 0, 1)};
    for (int32_t tile = begin; tile < end; ++tile, pipeline.Next()) {
      if (tile + kAhead < end) Prefetch(slot, tile + kAhead, last_position);
      MbarrierWait(shared_.empty[pipeline.stage], pipeline.parity ^ 1, "mla stage empty");
#pragma unroll
      for (int step = 0; step <= kRopeStep; ++step) {
        const int next_step = (step + 1) % (kRopeStep + 1);
        const Scales next_scales = LoadScales(keys, next_step);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          Store(parts[part], scales, step, part, pipeline.stage);
          parts[part] = Load(keys, next_step, part);
        }
        scales = next_scales;
        // All of this tile is loaded or on its way.
        if (next_step == kRopeStep) keys = Locate(slot, tile + 1 < end ? tile + 1 : tile, last_position);
      }
    }
  }

 private:
  static constexpr KvRowLayout Layout() { return {kLatent, kChunkColumns, true}; }
  static constexpr int kRopeStep = kLatent / KvRowLayout::kLatentGroup;
  static constexpr int kKeys = 2;   // of a thread
  static constexpr int kAhead = 2;  // tiles

  // Cache rows; null: not attended.
  struct Keys {
    const uint8_t* rows[kKeys];
  };
  // In a latent step the codes of one chunk; in the RoPE step the first or the last eight of 16 elements.
  struct Part {
    uint4 bytes[kKeys];
  };
  struct Scales {
    float of_key[kKeys];
  };

  __device__ __forceinline__ int Key(int i) const { return thread_ / 4 + i * (kKeyTile / kKeys); }
  __device__ __forceinline__ int Column() const { return thread_ % 4 * 16; }

  __device__ __forceinline__ Keys Locate(int32_t slot, int32_t tile, int32_t last_position) const {
    Keys keys;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int32_t position = tile * kKeyTile + Key(i);
      const bool attended = position >= op_.first_position && position <= last_position;
      keys.rows[i] = attended ? op_.layer.row(slot, position) : nullptr;
    }
    return keys;
  }

  // A row for each thread of the first two warps.
  __device__ __forceinline__ void Prefetch(int32_t slot, int32_t tile, int32_t last_position) const {
    const int32_t position = tile * kKeyTile + thread_;
    const bool attended = position >= op_.first_position && position <= last_position;
    if (thread_ < kKeyTile && attended) PrefetchL2(op_.layer.row(slot, position), Layout().bytes());
  }

  // Zeros for keys that are not attended.
  __device__ __forceinline__ Part Load(const Keys& keys, int step, int part) const {
    const int offset = step == kRopeStep ? Layout().rope_offset() + 2 * (Column() + 8 * part)
                                         : (2 * step + part) * kChunkColumns + Column();
    Part loaded = {};
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (keys.rows[i] != nullptr) loaded.bytes[i] = *reinterpret_cast<const uint4*>(keys.rows[i] + offset);
    }
    return loaded;
  }
  __device__ __forceinline__ Scales LoadScales(const Keys& keys, int step) const {
    Scales scales = {};
    if (step == kRopeStep) return scales;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (keys.rows[i] == nullptr) continue;
      scales.of_key[i] = KvScaleAt(keys.rows[i], Layout(), step * KvRowLayout::kLatentGroup);
    }
    return scales;
  }

  __device__ __forceinline__ void Store(const Part& loaded, const Scales& scales, int step, int part,
                                        int stage) {
    const int chunk = step == kRopeStep ? kChunks - 1 : 2 * step + part;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const uint4 bytes = loaded.bytes[i];
      if (step == kRopeStep) {
        *Elements(stage, chunk, Key(i), part) = bytes;
        continue;
      }
      *Elements(stage, chunk, Key(i), 0) = DecodeEight(make_uint2(bytes.x, bytes.y), scales.of_key[i]);
      *Elements(stage, chunk, Key(i), 1) = DecodeEight(make_uint2(bytes.z, bytes.w), scales.of_key[i]);
    }
    if (step < kRopeStep || part == 1) Publish(stage, chunk);
  }

  // The first or second eight of this thread's columns.
  __device__ __forceinline__ uint4* Elements(int stage, int chunk, int key, int half) const {
    return reinterpret_cast<uint4*>(shared_.keys[stage][chunk].At(key, Column() + 8 * half));
  }

  // This warp has written its part of a chunk, which wgmma reads through the async proxy.
  __device__ __forceinline__ void Publish(int stage, int chunk) {
    FenceProxyAsync();
    __syncwarp();
    if (threadIdx.x % kWarpLanes == 0) MbarrierArrive(shared_.full[stage][chunk]);
  }

  const MlaDecodeParams& op_;
  HopperDecodeShared& shared_;
  const int thread_;
};

// ---- the producer ----

// Finds the items, hands each to the consumers with its query, and brings its keys. Called by one warp for
// BF16 rows, by all of the producer's warps for FP8 rows: each finds the items for itself.
template <bool kFp8>
__device__ __forceinline__ void Produce(const HopperDecodePlan& p, HopperDecodeShared& shared) {
  const bool leads = threadIdx.x == kConsumerThreads;
  const uint64_t policy = CachePolicy<CacheHint::kEvictFirst>();
  Fp8KeyProducer fp8_keys(p.plan.op, shared);
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
    if constexpr (kFp8) {
      __syncwarp();
      fp8_keys.Produce(item, pipeline);
    } else {
      CopyKeys(p, shared, item, pipeline, policy);
    }
  }
}

}  // namespace foredraft::cuda::hopper_decode
