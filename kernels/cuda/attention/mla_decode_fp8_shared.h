#pragma once

// What the consumers and producers of mla_decode's kernel for Hopper with FP8 products (mla_decode_fp8.cu)
// share.

#include "kernels/cuda/attention/mla_decode.h"
#include "kernels/cuda/attention/mla_decode_hopper.h"
#include "kernels/cuda/common/pipeline_state.h"
#include "kernels/kv_row.h"

namespace foredraft::cuda::fp8_decode {

using hopper_decode::kConsumerThreads;
using hopper_decode::kGroupThreads;
using hopper_decode::kGroupWarps;
using hopper_decode::kHeads;
using hopper_decode::kLatent;
using hopper_decode::kThreads;

inline constexpr int kScaleGroups = kLatent / KvRowLayout::kLatentGroup;  // of columns that share a scale
inline constexpr int kStages = 3;
inline constexpr int kLoads = 2;  // of a tile: each has the codes of two groups of columns
inline constexpr int kLoadGroups = kScaleGroups / kLoads;

inline constexpr KvRowLayout kRow = {kLatent, 64, DType::kF8E4M3};
inline constexpr uint32_t kRowScaleBytes = kScaleGroups * sizeof(float);
inline constexpr uint32_t kRowRopeBytes = 64 * sizeof(bf16);
static_assert(kRow.rope_offset() == kRow.scale_offset() + static_cast<int32_t>(kRowScaleBytes));
static_assert(kTileRowBytes == KvRowLayout::kLatentGroup);  // a row of a tile is a group's codes

// 64 rows of 128 codes, swizzled as wgmma reads them.
struct alignas(1024) CodeTile {
  uint8_t codes[64 * kTileRowBytes];

  // The 16 bytes around byte `at` of a row, a multiple of 4.
  __device__ __forceinline__ uint8_t* At(int row, int at) {
    return codes + row * kTileRowBytes + (at ^ (row % 8 * 16));
  }
};
using RopeTile = hopper_decode::Chunk;

// How keys come: pages of rows by TMA; or row by row, where TMA cannot load the pages or rows are on a list.
enum class KeySource { kPages, kRows };

// Two tiles of heads of a row are a cluster, as in hopper_decode: in each stage, each block brings one of the
// two loads for both.
constexpr uint32_t BringerOf(int stage, int load, int blocks) { return (stage + load) % blocks; }

struct Fp8DecodePlan {
  DecodePlan plan;
  TensorMap codes;    // {128 columns, rows of all blocks, groups}
  TensorMap scales;   // {groups, rows}
  TensorMap rope;     // {columns, rows}
  int32_t page_rows;  // rows per TMA load: tokens_per_block, at most a tile
};

// The place of a key when the keys of a thread are adjacent: thread t of four has keys 2 t, 2 t + 1, 2 t + 8
// and 2 t + 9 of each 16 in a wgmma's accumulators.
constexpr int PlaceOf(int key) { return key / 16 * 16 + key % 8 / 2 * 4 + key / 8 % 2 * 2 + key % 2; }

// The scales of a tile's keys as its products need them, key k at PlaceOf(k); S is the largest one of the
// keys that the row attends.
struct TileScales {
  alignas(16) float of_key[kScaleGroups][kKeyTile];     // s; 1 where the row does not attend the key
  alignas(16) float of_weight[kScaleGroups][kKeyTile];  // 2^8 s / S; 0 where it does not
  float of_value[kScaleGroups];                         // S / 2^8
};

struct Fp8DecodeShared {
  CodeTile query[kScaleGroups];
  alignas(1024) RopeTile query_rope;
  CodeTile keys[kStages][kScaleGroups];
  alignas(1024) RopeTile rope[kStages];
  // Weights as codes, for the columns of each consumer group: a head's codes for one group of columns, then
  // for the other one.
  CodeTile weights[kStages][2];
  alignas(128) float4 row_scales[kStages][kKeyTile];  // as they lie in the rows
  TileScales scales[kStages];
  float query_scales[kScaleGroups][kHeads];
  // The running softmax of each thread of a group, after the group's last tile: the maxima of the thread's
  // two heads, and its part of their sums of weights.
  float4 softmax[2][kGroupThreads];
  float keep[kStages][kHeads];  // factor of the outputs before the tile is added
  float2 combined[2][kHeads];   // of each group: max, sum of the splits so far
  float2 exchanged[2][kHeads];  // of each group: what its threads tell each other at the end of a split
  DecodeItem items[2];          // this one and the next
  Mbarrier item_full, item_empty;
  Mbarrier full[kStages][kLoads];
  Mbarrier empty[kStages][kLoads];  // in the block that brings the load
  Mbarrier scaled[kStages];
  Mbarrier weights_ready[kStages];
};
static_assert(kStages * kKeyTile * kRow.bytes() == kFp8DecodeBytesInFlight);
static_assert(sizeof(Fp8DecodeShared) <= 227 * 1024, "the shared memory limit of a block");

using Pipeline = PipelineState<kStages>;

// The head of a row of a wgmma's accumulators: a thread has two such rows, the second 8 after the first.
__device__ __forceinline__ int HeadRow(int half) {
  return static_cast<int>(threadIdx.x) % kGroupThreads / kWarpLanes * 16 +
         static_cast<int>(threadIdx.x) % kWarpLanes / 4 + half * 8;
}

}  // namespace foredraft::cuda::fp8_decode
