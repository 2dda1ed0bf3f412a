#pragma once

// Producers of mla_decode's kernel for Hopper that bring keys row by row: rows that TMA cannot load, because
// they are in FP8 or on a list.

#include "kernels/cuda/attention/kv_row_load.h"
#include "kernels/cuda/attention/mla_decode_hopper.h"

namespace foredraft::cuda::hopper_decode {

// The cache row of a place that row `row` attends; -1: it attends no such place. kListed: rows may have a
// list.
template <bool kListed>
__device__ __forceinline__ int32_t CacheRowAt(const MlaDecodeParams& op, int32_t row, int32_t place,
                                              int32_t last_place) {
  if (place < op.first_position || place > last_place) return -1;
  const KvLayer& layer = op.layer;
  const int32_t* const table =
      layer.block_tables + static_cast<int64_t>(op.index.slots[row]) * layer.table_stride;
  const int32_t position = kListed ? op.position_at(row, place) : place, tokens = layer.tokens_per_block;
  return table[position / tokens] * tokens + position % tokens;
}

// ---- BF16 rows ----

// Copies tiles of keys by cp.async. Two warps fill the first stage and two the second, so that a warp may
// wait for its copies before it fences them: it has nothing else to copy until its stage is free again. Eight
// threads copy a row, and each of them looks up one of the eight rows that they copy.
class RowKeyProducer {
 public:
  static constexpr int kStageWarps = kGroupWarps / kStages;

  __device__ __forceinline__ RowKeyProducer(const MlaDecodeParams& op, HopperDecodeShared& shared)
      : op_(op),
        shared_(shared),
        thread_(threadIdx.x % kStageThreads),
        stage_(threadIdx.x % kGroupThreads / kStageThreads) {}

  __device__ __forceinline__ void Produce(const DecodeItem& item, Pipeline& pipeline) {
    const int32_t last_place = item.last_place;
    const auto [begin, end] = ItemTiles(op_, item);
    const auto find = [&](int32_t tile) {
      return CacheRowAt<true>(op_, item.row, tile * kKeyTile + thread_ % 8 * kRowsAtOnce + thread_ / 8,
                              last_place);
    };
    int32_t row = find(pipeline.stage == stage_ ? begin : begin + 1);
    for (int32_t tile = begin; tile < end; ++tile, pipeline.Next()) {
      if (pipeline.stage != stage_) continue;
      const int32_t next = find(tile + kStages);  // early, to hide the latency of the list and the table
      Copy(row, pipeline);
      row = next;
    }
  }

 private:
  static constexpr int kStageThreads = kStageWarps * kWarpLanes;
  static constexpr int kRowsAtOnce = kStageThreads / 8;
  static constexpr int kRowBytes = kChunks * kChunkColumns * static_cast<int>(sizeof(bf16));
  static_assert(kKeyTile / kRowsAtOnce == 8);

  __device__ __forceinline__ const bf16* Row(int32_t row) const {
    return reinterpret_cast<const bf16*>(op_.layer.data + int64_t{row} * kRowBytes);
  }

  // `found`: the cache row that this thread has looked up.
  __device__ __forceinline__ void Copy(int32_t found, const Pipeline& pipeline) {
    Chunk(&keys)[kChunks] = shared_.keys[stage_];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      MbarrierWait(shared_.empty[stage_][load], pipeline.parity ^ 1, "mla stage empty");
#pragma unroll
      for (int round = 0; round < 8; ++round) {
        const int32_t row = __shfl_sync(kAllLanes, found, round, 8);
        const bf16* const from = Row(max(row, 0)) + thread_ % 8 * 8;
#pragma unroll
        for (int chunk = load * kLoadChunks; chunk < (load + 1) * kLoadChunks; ++chunk) {
          CpAsync16(keys[chunk].At(round * kRowsAtOnce + thread_ / 8, thread_ % 8 * 8),
                    from + chunk * kChunkColumns, row >= 0);
        }
      }
      CpAsyncCommit();
    }
    Publish<kLoads - 1>();
  }

  // Announces each load as soon as this warp's part of it has arrived.
  template <int pending>
  __device__ __forceinline__ void Publish() {
    CpAsyncWait<pending>();
    FenceProxyAsync();
    __syncwarp();
    if (threadIdx.x % kWarpLanes == 0) MbarrierArrive(shared_.full[stage_][kLoads - 1 - pending]);
    if constexpr (pending > 0) Publish<pending - 1>();
  }

  const MlaDecodeParams& op_;
  HopperDecodeShared& shared_;
  const int thread_;  // of the two warps
  const int stage_;   // which these fill
};

// ---- FP8 rows ----

__host__ __device__ constexpr KvRowLayout Fp8RowLayout() { return {kLatent, kChunkColumns, DType::kF8E4M3}; }

// Where keys that are not attended are read: codes and scales of 0 decode to zeros.
__device__ const uint4 kZeroFp8Row[Fp8RowLayout().bytes() / sizeof(uint4)] = {};

// Decodes tiles of keys. A thread has 16 of each chunk's 64 columns, for two keys, 32 keys apart; with two
// blocks, each block decodes one of these halves of the keys, and stores it in both. A part is a thread's
// codes of a chunk; its elements of a key's RoPE chunk are two parts, eight elements each. As soon as a part
// is stored, the load of the part kInFlight after it begins. These loads keep 16 KB in flight (10 KB with two
// blocks), too little for the latency of device memory, so whole rows are prefetched into the L2 cache
// kTilesAhead tiles before.
template <int kBlocks>
class Fp8KeyProducer {
 public:
  __device__ __forceinline__ Fp8KeyProducer(const MlaDecodeParams& op, HopperDecodeShared& shared)
      : op_(op),
        shared_(shared),
        thread_(threadIdx.x % kGroupThreads),
        first_key_(kBlocks > 1 ? ClusterRank() * kBlockKeys : 0) {}

  __device__ __forceinline__ void Produce(const DecodeItem& item, Pipeline& pipeline) {
    const int32_t last_place = item.last_place;
    const auto [begin, end] = ItemTiles(op_, item);
    for (int32_t tile = begin + 1; tile < min(begin + kTilesAhead, end); ++tile) {
      Prefetch(item.row, tile, last_place);
    }
    Keys keys = RowsOf(Find(item.row, begin, last_place));
    Scales scales[2] = {LoadScales(keys, 0), LoadScales(keys, 1)}, next_scales[2];
    Part parts[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) parts[i] = Load(keys, i);
    for (int32_t tile = begin; tile < end; ++tile, pipeline.Next()) {
      if (tile + kTilesAhead < end) Prefetch(item.row, tile + kTilesAhead, last_place);
      // Early, to hide the latency of the block table.
      const Places next = Find(item.row, min(tile + 1, end - 1), last_place);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        Store(parts[i % kInFlight], scales[i / 4 % 2], i, pipeline);
        parts[i % kInFlight] = Load(keys, (i + kInFlight) % kParts);
        if (i + kInFlight == kParts - 1) {  // all of this tile is loaded or on its way
          keys = RowsOf(next);
          next_scales[0] = LoadScales(keys, 0);
          next_scales[1] = LoadScales(keys, 1);
        }
        if (i == max(kCodeParts, kParts - kInFlight) - 1) {
          scales[0] = next_scales[0];
          scales[1] = next_scales[1];
        }
      }
    }
  }

 private:
  static constexpr int kBlockKeys = kKeyTile / kBlocks;
  static constexpr int kKeys = 2 / kBlocks;  // of a thread
  static constexpr int kCodeParts = kChunks - 1;
  static constexpr int kParts = kCodeParts + 2 * kKeys;
  static constexpr int kInFlight = kBlocks > 1 ? 5 : 4;
  static_assert(kParts % kInFlight == 0);  // a part has the same registers in every tile

  // Rows of the layer; -1: not attended.
  struct Places {
    int32_t rows[kKeys];
  };
  struct Keys {
    const uint8_t* rows[kKeys];
  };
  struct Part {
    uint4 bytes[kKeys];  // of the RoPE chunk only the first
  };
  // The scales of the codes of four parts.
  struct Scales {
    float2 of_key[kKeys];
  };

  __device__ __forceinline__ int Key(int i) const {
    return first_key_ + thread_ / 4 + i * (kBlockKeys / kKeys);
  }
  __device__ __forceinline__ int Column() const { return thread_ % 4 * 16; }

  __device__ __forceinline__ Places Find(int32_t row, int32_t tile, int32_t last_place) const {
    Places places;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      places.rows[i] = CacheRowAt<false>(op_, row, tile * kKeyTile + Key(i), last_place);
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

  // Each thread of the first warps prefetches one row.
  __device__ __forceinline__ void Prefetch(int32_t row, int32_t tile, int32_t last_place) const {
    if (thread_ >= kBlockKeys) return;
    const int32_t at = CacheRowAt<false>(op_, row, tile * kKeyTile + first_key_ + thread_, last_place);
    if (at >= 0) PrefetchL2(op_.layer.data + int64_t{at} * Fp8RowLayout().bytes(), Fp8RowLayout().bytes());
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
      StoreEight(stage, chunk, Key(rope / 2), rope % 2, loaded.bytes[0]);
    } else {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        const uint4 codes = loaded.bytes[i];
        const float scale = part % 4 < 2 ? scales.of_key[i].x : scales.of_key[i].y;
        StoreEight(stage, chunk, Key(i), 0, DecodeEight<DType::kF8E4M3>(make_uint2(codes.x, codes.y), scale));
        StoreEight(stage, chunk, Key(i), 1, DecodeEight<DType::kF8E4M3>(make_uint2(codes.z, codes.w), scale));
      }
    }
    if (part == kParts - 1) Publish(stage);
  }

  // The first or second eight of this thread's columns.
  __device__ __forceinline__ void StoreEight(int stage, int chunk, int key, int half,
                                             const uint4& elements) const {
    auto* const to = reinterpret_cast<uint4*>(shared_.keys[stage][chunk].At(key, Column() + 8 * half));
    *to = elements;
    if constexpr (kBlocks > 1) {
      StoreAsyncAt(to, elements, shared_.full[stage][chunk / kLoadChunks], ClusterRank() ^ 1);
    }
  }

  // Announces this warp's part of a tile, which wgmma reads through the async proxy. Called once a tile,
  // because the fence waits for the loads that are in flight. The first warp also announces the bytes that
  // the other block stores here, some of which may have arrived already.
  __device__ __forceinline__ void Publish(int stage) {
    FenceProxyAsync();
    __syncwarp();
    if (threadIdx.x % kWarpLanes != 0) return;
#pragma unroll
    for (Mbarrier& full : shared_.full[stage]) {
      if (kBlocks > 1 && thread_ == 0) {
        MbarrierArriveExpectTx(full, (kKeyTile - kBlockKeys) * kTileRowBytes * kLoadChunks);
      } else {
        MbarrierArrive(full);
      }
    }
  }

  const MlaDecodeParams& op_;
  HopperDecodeShared& shared_;
  const int thread_;
  const int first_key_;  // of those that this block decodes
};

}  // namespace foredraft::cuda::hopper_decode
