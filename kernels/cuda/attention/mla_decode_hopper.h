#pragma once

// What the consumers and the producer of mla_decode's kernel for Hopper (mla_decode_hopper.cu) share.

#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/attention/mla_decode.h"
#include "kernels/cuda/attention/mla_decode_load.h"
#include "kernels/cuda/attention/mla_decode_search.h"
#include "kernels/cuda/common/pipeline_state.h"
#include "kernels/cuda/common/ptx_attention.h"
#include "kernels/cuda/common/ptx_cluster.h"

namespace foredraft::cuda::hopper_decode {

inline constexpr int kHeads = 64;
inline constexpr int kLatent = 512;
inline constexpr int kChunkColumns = 64;  // of a swizzled tile: 128 bytes
inline constexpr int kChunks = 9;         // 512 + 64 columns
inline constexpr int kLoadChunks = 3;     // chunks of a tile that arrive and are released together
inline constexpr int kLoads = kChunks / kLoadChunks;
inline constexpr int kValueChunks = 4;  // of a group
inline constexpr int kStages = 2;
inline constexpr int kGroupThreads = 128;
inline constexpr int kConsumerThreads = 2 * kGroupThreads;
inline constexpr int kConsumerWarps = kConsumerThreads / kWarpLanes;
inline constexpr int kGroupWarps = kGroupThreads / kWarpLanes;
inline constexpr int kThreads = kConsumerThreads + kGroupThreads;  // setmaxnreg applies to whole warpgroups

using Chunk = RowTile<64, kChunkColumns>;  // 64 heads or keys

// How keys come: pages of BF16 rows by TMA, or one row after the other, in BF16 or FP8.
enum class KeySource { kPages, kRows, kFp8Rows };

// Two tiles of heads of a row are a cluster of two blocks, if the row's tiles of heads are even in number:
// both need the same keys at the same time, and each brings half of them for both. Where keys are pages, the
// blocks alternate in bringing the three loads of a stage: one brings one, the other two, and the next stage
// the other way round. Where keys are FP8 rows, each block brings half of each tile's keys.
constexpr uint32_t BringerOf(int stage, int load, int blocks) { return (stage + load) % blocks; }

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
  // The running softmax, of each thread of a consumer group: the maxima after the last tile, and the
  // sums of weights after the tile of each stage, per 16 keys of a tile.
  float2 max[kGroupThreads];
  float4 sums[kStages][2][kGroupThreads];
  float2 combined[2][kHeads];  // of each group: max, sum of the splits so far
  DecodeItem items[2];         // this one and the next; query_full and query_empty guard them, too
  Mbarrier query_full, query_empty;
  Mbarrier full[kStages][kLoads];   // scores start once the first has arrived
  Mbarrier empty[kStages][kLoads];  // in each block that writes the load; for pages, in its bringer
  Mbarrier weights_ready[kStages];

  // The weights of a tile's keys take the place of its RoPE chunk once that has been read.
  __device__ __forceinline__ Chunk& weights(int stage) { return keys[stage][kChunks - 1]; }
};

// Whether P V of a consumer group reads a load of a tile: the group's columns, or the weights.
constexpr bool ReadsLoad(int group, int load) {
  const int first = group * kValueChunks, begin = load * kLoadChunks;
  return load == kLoads - 1 || (begin < first + kValueChunks && first < begin + kLoadChunks);
}

static_assert(sizeof(HopperDecodeShared::keys) == kHopperDecodeBytesInFlight);
static_assert(sizeof(HopperDecodeShared) <= 227 * 1024, "the shared memory limit of a block");

using Pipeline = PipelineState<kStages>;

inline constexpr int kTilesAhead = 2;  // how far tiles are prefetched into the L2 cache before their loads

// The key tiles of an item; adjacent splits have adjacent tiles.
__device__ __forceinline__ TileRange ItemTiles(const MlaDecodeParams& op, const DecodeItem& item) {
  const int32_t last_split = item.first_split + item.split_count - 1;
  return {SplitTiles(op, item.split_len, item.first_split, item.last_place).begin,
          SplitTiles(op, item.split_len, last_split, item.last_place).end};
}

}  // namespace foredraft::cuda::hopper_decode
