#pragma once

// What the kernels of mla_decode share. mla_decode_schedule.h says which splits a row has and which block
// computes them; blocks find their items on the device from the rows' positions, so the grid does not depend
// on positions.

#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/attention/mla_decode_schedule.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/ops.h"

namespace foredraft::cuda {

// Parameters of the mla_decode kernels.
struct DecodePlan {
  MlaDecodeParams op;
  float score_scale;  // scale * log2 e
  int32_t heads_per_item;
  int32_t head_tiles;   // ceil(heads / heads_per_item): the blocks of a group
  int32_t groups;       // of blocks
  int32_t max_splits;   // of a row
  int32_t aligned;      // 16-byte copies and paired stores are possible
  int32_t pairs;        // DecodeChoice::pairs
  int32_t* row_begins;  // [R + 1]: the cost before the row, -1: nothing to combine; undefined for rows of one
                        // split. [R]: the cost of all rows
  float2* partial_stats;   // [PartialCount, head_tiles, heads_per_item]: max, sum
  float* partials;         // [PartialCount, head_tiles, heads_per_item, latent]: unnormalised outputs
  float* running_outputs;  // [blocks, one item's output]: running output of items that merge their splits
};

// A work item: adjacent splits of a row, for the heads of a tile.
struct DecodeItem {
  int32_t row;  // -1: no item
  int32_t head_tile;
  int32_t last_place;  // of the row
  int32_t split_len;
  int32_t first_split;  // counted from position 0
  int32_t split_count;
  bool begins_row;  // has the row's first split, so the item merges its splits as it goes
  int32_t
      partial;  // index of its first partial result, the next one head_tiles later; -1: it writes the output

  // Whether the item keeps a running output in DecodePlan::running_outputs.
  __device__ __forceinline__ bool combines() const { return begins_row && split_count > 1; }
};

// Merges the next split into the running softmax: the new maximum, and the rescaling factors.
struct CombineStep {
  float max;
  float keep;  // factor of the running sums
  float take;  // factor of the next split's sums
};

__device__ __forceinline__ CombineStep CombineMax(float max, float next_max) {
  const float both = fmaxf(max, next_max);
  return {both, exp2f(max - both), exp2f(next_max - both)};
}
__device__ __forceinline__ float CombineSum(float sum, float next, const CombineStep& step) {
  return fmaf(sum, step.keep, next * step.take);
}

// Tile sizes of a work item. kLatent and kWidth: the sizes of a cache row if known at compile time, else 0.
template <int kHeadTiles, int kWarps, int kStrideOf, int kLatent, int kWidth, int kBlocksPerSm,
          int kStages = 2, int kWeightTiles = 1>
struct DecodeShape
    : HeadsShape<kHeadTiles, kWarps, kStrideOf, kLatent != 0 ? kLatent : std::min(kStrideOf, 512), kStages,
                 kBlocksPerSm, kWeightTiles> {
  static constexpr bool kExact = kLatent > 0;  // only for aligned rows of exactly this size
  static constexpr int kStateFloats = DecodeShape::kHeads * DecodeShape::kValue;

  static __device__ __forceinline__ int Latent(const KvLayer& layer) {
    return kLatent > 0 ? kLatent : layer.latent_dim;
  }
  static __device__ __forceinline__ int Width(const KvLayer& layer) {
    return kWidth > 0 ? kWidth : layer.row_width();
  }
};

using R1DecodeShape = DecodeShape<4, 8, 576, 512, 576, 1>;    // 64 heads, 512 + 64
using WideDecodeShape = DecodeShape<1, 4, 576, 0, 0, 1>;      // up to 512 and 576 together
using SmallDecodeShape = DecodeShape<1, 4, 576, 0, 0, 1, 1>;  // as Wide, in 99 KB of shared memory
using NarrowDecodeShape = DecodeShape<1, 4, 128, 0, 0, 4>;    // up to 128 together

// WideDecodeShape and SmallDecodeShape with FP8 products.
using WideFp8DecodeShape = DecodeShape<1, 4, 576, 0, 0, 1, 2, 4>;
using SmallFp8DecodeShape = DecodeShape<1, 4, 576, 0, 0, 1, 1, 4>;

template <class Shape>
void LaunchDecodeItems(Stream& stream, const DecodePlan& plan, int32_t blocks);
// Whether a block's shared memory suffices for the shape. SmallDecodeShape and NarrowDecodeShape fit every
// GPU.
template <class Shape>
bool DecodeItemsFit();

// Compute R1DecodeShape's items with TMA and wgmma, where HopperSupportsDecode; LaunchDecodeFp8 with FP8
// products.
void LaunchDecodeHopper(Stream& stream, const DecodePlan& plan, int32_t blocks);
void LaunchDecodeFp8(Stream& stream, const DecodePlan& plan, int32_t blocks);
bool HopperSupportsDecode(const MlaDecodeParams& op);

// Execution choices of MlaDecode; none changes a bit.
struct DecodeChoice {
  int64_t blocks;      // per kBlocksPerSm of the shape; at least one per tile of heads runs
  bool hopper = true;  // use LaunchDecodeHopper where supported
  bool pairs = true;   // there, if tiles of heads are even in number, clusters of two that share keys
};
void MlaDecodeBy(const DecodeChoice& choice, Stream& stream, const MlaDecodeParams& p);

}  // namespace foredraft::cuda
