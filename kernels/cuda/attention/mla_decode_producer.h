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
inline constexpr int kLoadChunks = 3;     // of a tile, that arrive and are released together
inline constexpr int kLoads = kChunks / kLoadChunks;
inline constexpr int kValueChunks = 4;  // of a group
inline constexpr int kStages = 2;
inline constexpr int kGroupThreads = 128;
inline constexpr int kConsumerThreads = 2 * kGroupThreads;
inline constexpr int kConsumerWarps = kConsumerThreads / kWarpLanes;
inline constexpr int kGroupWarps = kGroupThreads / kWarpLanes;
inline constexpr int kThreads = kConsumerThreads + kGroupThreads;  // setmaxnreg applies to whole warpgroups

using Chunk = RowTile<64, kChunkColumns>;  // 64 heads or keys

struct HopperDecodePlan {
  DecodePlan plan;
  TensorMap q_lat;    // {latent, heads, rows}
  TensorMap q;        // {head_dim, heads, rows}
  TensorMap cache;    // {columns of a chunk, rows of all blocks, chunks}
  int32_t page_rows;  // rows per TMA load: tokens_per_block, at most a tile

  __host__ __device__ int box_chunks() const { return page_rows == kKeyTile ? kLoadChunks : 1; }
};

struct HopperDecodeShared {
  alignas(1024) Chunk query[kChunks];
  alignas(1024) Chunk keys[kStages][kChunks];
  // The running softmax, of each thread of a consumer group: the maxima behind the tile weighed last, and the
  // sums of weights behind that in each stage, per 16 keys of a tile.
  float2 max[kGroupThreads];
  float4 sums[kStages][2][kGroupThreads];
  float2 folded[2][kHeads];  // of each group: max, sum of the splits so far
  DecodeItem items[2];       // this one and the next, each full and empty with its query
  Mbarrier query_full, query_empty;
  Mbarrier full[kStages][kLoads];  // the scores start with the first
  Mbarrier empty[kStages][kLoads];
  Mbarrier weighed[kStages];

  // Of the tile's keys, in place of its RoPE chunk once that has been read.
  __device__ __forceinline__ Chunk& weights(int stage) { return keys[stage][kChunks - 1]; }
};

// Whether P V of a consumer group reads a part of a tile: its columns, or the weights.
constexpr bool ReadsLoad(int group, int load) {
  const int first = group * kValueChunks, begin = load * kLoadChunks;
  return load == kLoads - 1 || (begin < first + kValueChunks && first < begin + kLoadChunks);
}

static_assert(sizeof(HopperDecodeShared::keys) == kHopperDecodeBytesInFlight);
static_assert(sizeof(HopperDecodeShared) <= 227 * 1024, "the shared memory limit of a block");

using Pipeline = PipelineState<kStages>;

inline constexpr int kTilesAhead = 2;  // of the loads, that are on their way into the L2 cache

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
  const int box_chunks = p.box_chunks();
  for (int load = 0; load < kLoads; ++load) {
    Mbarrier& full = shared.full[pipeline.stage][load];
    if (leads) {
      MbarrierWait(shared.empty[pipeline.stage][load], pipeline.parity ^ 1, "mla stage empty");
      MbarrierArriveExpectTx(full, pages * p.page_rows * kTileRowBytes * kLoadChunks);
    }
    for (int32_t page = 0; page < pages; ++page) {
      const int32_t row = __shfl_sync(kAllLanes, page_row, page);
      if (!leads) continue;
      for (int chunk = load * kLoadChunks; chunk < (load + 1) * kLoadChunks; chunk += box_chunks) {
        TmaLoad(shared.keys[pipeline.stage][chunk].elements + page * p.page_rows * kChunkColumns, p.cache, 0,
                row, chunk, full, policy);
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

// Brings this lane's page of a tile into the L2 cache, kTilesAhead tiles before it is loaded: a stage is
// loaded from when it is free until the consumers need it, too short for the latency of device memory.
__device__ __forceinline__ void PrefetchTile(const HopperDecodePlan& p, int32_t pages, int32_t page_row) {
  if (static_cast<int32_t>(threadIdx.x % kWarpLanes) >= pages) return;
  const KvLayer& layer = p.plan.op.layer;
  const int64_t row_bytes = layer.row_width() * sizeof(bf16);
  PrefetchL2(layer.data + page_row * row_bytes, static_cast<uint32_t>(p.page_rows * row_bytes));
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
  const auto page_row = [&](int32_t tile) { return tile < end ? PageRow(p, table, tile, last_position) : 0; };
  // Blocks of other heads read the same keys at the same time.
  const bool prefetches = item.head_tile == 0;
  int32_t row = page_row(begin), next = page_row(begin + 1);
  for (int32_t tile = begin; tile < end; ++tile, pipeline.Next()) {
    const int32_t after = page_row(tile + kTilesAhead);
    if (prefetches && tile + kTilesAhead < end) {
      PrefetchTile(p, TilePages(p, tile + kTilesAhead, last_position), after);
    }
    CopyTile(p, shared, TilePages(p, tile, last_position), row, pipeline, policy);
    row = next;
    next = after;
  }
  __syncwarp();
}

// ---- FP8 rows ----

__host__ __device__ constexpr KvRowLayout Fp8RowLayout() { return {kLatent, kChunkColumns, true}; }

// Where keys that are not attended are read: codes and scales of 0 decode to zeros.
__device__ const uint4 kZeroFp8Row[Fp8RowLayout().bytes() / sizeof(uint4)] = {};

// Decodes tiles of keys: a thread has the same 16 of each chunk's 64 columns of two keys, 32 keys apart. The
// codes of a chunk are a part; the elements of the RoPE chunk are four, of eight each. As soon as a part is
// stored, the one kInFlight after it is loaded. These loads keep 16 KB in flight, too little for the latency
// of device memory, so whole rows are fetched into the L2 cache kTilesAhead tiles before.
class Fp8KeyProducer {
 public:
  __device__ __forceinline__ Fp8KeyProducer(const MlaDecodeParams& op, HopperDecodeShared& shared)
      : op_(op), shared_(shared), thread_(threadIdx.x % kGroupThreads) {}

  __device__ __forceinline__ void Produce(const DecodeItem& item, Pipeline& pipeline) {
    const int32_t last_position = op_.index.positions[item.row];
    const int32_t slot = op_.index.slots[item.row];
    const auto [begin, end] = ItemTiles(op_, item, last_position);
    for (int32_t tile = begin + 1; tile < min(begin + kTilesAhead, end); ++tile)
      Prefetch(slot, tile, last_position);
    Keys keys = RowsOf(Find(slot, begin, last_position));
    Scales scales[2] = {LoadScales(keys, 0), LoadScales(keys, 1)};
    Part parts[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) parts[i] = Load(keys, i);
    for (int32_t tile = begin; tile < end; ++tile, pipeline.Next()) {
      if (tile + kTilesAhead < end) Prefetch(slot, tile + kTilesAhead, last_position);
      // Early, to hide the latency of the block table.
      const Places next = Find(slot, min(tile + 1, end - 1), last_position);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        Store(parts[i % kInFlight], scales[i / 4 % 2], i, pipeline);
        parts[i % kInFlight] = Load(keys, (i + kInFlight) % kParts);
        if (i + kInFlight == kParts - 1) {  // all of this tile is loaded or on its way
          keys = RowsOf(next);
          scales[0] = LoadScales(keys, 0);
          scales[1] = LoadScales(keys, 1);
        }
      }
    }
  }

 private:
  static constexpr int kKeys = 2;  // of a thread
  static constexpr int kCodeParts = kChunks - 1;
  static constexpr int kParts = kCodeParts + 2 * kKeys;
  static constexpr int kInFlight = 4;
  static_assert(kParts % kInFlight == 0);  // a part has the same registers in every tile

  // Of the layer; -1: not attended.
  struct Places {
    int32_t rows[kKeys];
  };
  struct Keys {
    const uint8_t* rows[kKeys];
  };
  struct Part {
    uint4 bytes[kKeys];  // of the RoPE chunk only the first
  };
  // Of the codes of four parts.
  struct Scales {
    float2 of_key[kKeys];
  };

  __device__ __forceinline__ int Key(int i) const { return thread_ / 4 + i * (kKeyTile / kKeys); }
  __device__ __forceinline__ int Column() const { return thread_ % 4 * 16; }

  __device__ __forceinline__ Places Find(int32_t slot, int32_t tile, int32_t last_position) const {
    const int32_t* const table = op_.layer.block_tables + static_cast<int64_t>(slot) * op_.layer.table_stride;
    Places places;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int32_t position = tile * kKeyTile + Key(i);
      const bool attended = position >= op_.first_position && position <= last_position;
      const int32_t tokens = op_.layer.tokens_per_block;
      places.rows[i] = attended ? table[position / tokens] * tokens + position % tokens : -1;
    }
    return places;
  }
  __device__ __forceinline__ Keys RowsOf(const Places& places) const {
    Keys keys;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      keys.rows[i] = places.rows[i] >= 0 ? op_.layer.data + int64_t{places.rows[i]} * Fp8RowLayout().bytes()
                                         : reinterpret_cast<const uint8_t*>(kZeroFp8Row);
    }
    return keys;
  }

  // A row for each thread of the first two warps.
  __device__ __forceinline__ void Prefetch(int32_t slot, int32_t tile, int32_t last_position) const {
    const int32_t position = tile * kKeyTile + thread_;
    const bool attended = position >= op_.first_position && position <= last_position;
    if (thread_ < kKeyTile && attended) PrefetchL2(op_.layer.row(slot, position), Fp8RowLayout().bytes());
  }

  __device__ __forceinline__ Part Load(const Keys& keys, int part) const {
    const auto load = [&](int key, int offset) {
      return *reinterpret_cast<const uint4*>(keys.rows[key] + offset);
    };
    Part loaded = {};
    const int rope = part - kCodeParts;
    if (rope >= 0) {
      loaded.bytes[0] = load(rope / 2, Fp8RowLayout().rope_offset() + 2 * (Column() + rope % 2 * 8));
      return loaded;
    }
#pragma unroll
    for (int i = 0; i < kKeys; ++i) loaded.bytes[i] = load(i, part * kChunkColumns + Column());
    return loaded;
  }
  __device__ __forceinline__ Scales LoadScales(const Keys& keys, int half) const {
    Scales scales;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      scales.of_key[i] = reinterpret_cast<const float2*>(keys.rows[i] + Fp8RowLayout().scale_offset())[half];
    }
    return scales;
  }

  __device__ __forceinline__ void Store(const Part& loaded, const Scales& scales, int part,
                                        const Pipeline& pipeline) {
    const int stage = pipeline.stage;
    const int chunk = min(part, kCodeParts);
    const int load = chunk / kLoadChunks;
    if (part <= kCodeParts && chunk % kLoadChunks == 0) {
      MbarrierWait(shared_.empty[stage][load], pipeline.parity ^ 1, "mla stage empty");
    }
    const int rope = part - kCodeParts;
    if (rope >= 0) {
      *Elements(stage, chunk, Key(rope / 2), rope % 2) = loaded.bytes[0];
    } else {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        const uint4 codes = loaded.bytes[i];
        const float scale = part % 4 < 2 ? scales.of_key[i].x : scales.of_key[i].y;
        *Elements(stage, chunk, Key(i), 0) = DecodeEight(make_uint2(codes.x, codes.y), scale);
        *Elements(stage, chunk, Key(i), 1) = DecodeEight(make_uint2(codes.z, codes.w), scale);
      }
    }
    if (part == kParts - 1) Publish(stage);
  }

  // The first or second eight of this thread's columns.
  __device__ __forceinline__ uint4* Elements(int stage, int chunk, int key, int half) const {
    return reinterpret_cast<uint4*>(shared_.keys[stage][chunk].At(key, Column() + 8 * half));
  }

  // This warp has written its part of a tile, which wgmma reads through the async proxy. Once a tile: the
  // fence waits for the loads that are in flight.
  __device__ __forceinline__ void Publish(int stage) {
    FenceProxyAsync();
    __syncwarp();
    if (threadIdx.x % kWarpLanes != 0) return;
#pragma unroll
    for (Mbarrier& full : shared_.full[stage]) MbarrierArrive(full);
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
