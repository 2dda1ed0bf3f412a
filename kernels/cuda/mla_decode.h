#ifndef FOREDRAFT_KERNELS_CUDA_MLA_DECODE_H_
#define FOREDRAFT_KERNELS_CUDA_MLA_DECODE_H_

// How mla_decode is cut into work, shared by its kernels.
//
// A row's positions are cut into splits of kSplitLen counted from position 0, each with a softmax of its own;
// the splits' states are folded in ascending order, beginning with the first one's as it is. This order is
// part of the numerics class; who computes what is not:
//  - a row's splits are separate work items whose states go to `partials`, folded by CombineSplits;
//  - or, for rows whose partials would not fit, one item walks all the splits and folds as it goes.
// Items are found on the device from the rows' positions: the grid does not depend on them.

#include "kernels/cuda/cuda_stream.h"
#include "kernels/ops.h"

namespace foredraft::cuda {

inline constexpr int32_t kSplitLen = 1024;

// Parameters of the kernels.
struct DecodePlan {
  MlaDecodeParams op;
  float score_scale;  // scale * log2 e
  int32_t heads_per_item;
  int32_t head_tiles;     // items side by side: ceil(heads / heads_per_item)
  int32_t partial_count;  // room for so many items' states
  int32_t aligned;        // 16-byte copies and paired stores are possible
  int32_t* row_partials;  // [R]: place of the row's first item, -1: nothing to combine
  float2* partial_stats;  // [partial_count, heads_per_item]: max, sum
  float* partials;        // [partial_count, heads_per_item, latent]: sums, not divided
  float* folds;           // [blocks, an item's state]: for items that fold
};

// One block's work at a time.
struct DecodeItem {
  int32_t row;
  int32_t head_tile;
  int32_t first_split;
  int32_t split_count;
  int32_t partial;  // where the state of the only split goes; -1: the item writes the row's output
};

// The fold: the state so far and the next split's, as factors of their sums.
struct FoldStep {
  float max;
  float keep;  // of what was there
  float take;  // of what comes
};

__device__ __forceinline__ FoldStep Fold(float max, float next_max) {
  const float both = fmaxf(max, next_max);
  return {both, exp2f(max - both), exp2f(next_max - both)};
}
__device__ __forceinline__ float FoldSum(float sum, float next, const FoldStep& step) {
  return fmaf(sum, step.keep, next * step.take);
}

// How rows' heads are dealt to blocks and how their state lies in registers.
//   kHeadTiles: 16 heads each; kWarps: a multiple of kHeadTiles; kStride: elements of a tile's row, at least
//   latent + rope; kLatent, kWidth: the cache row where it is known, else 0
template <int kHeadTilesOf, int kWarpsOf, int kStrideOf, int kLatentOf, int kWidthOf, int kBlocksPerSmOf>
struct DecodeShape {
  static constexpr int kHeadTiles = kHeadTilesOf;
  static constexpr int kHeads = kHeadTiles * 16;
  static constexpr int kWarps = kWarpsOf;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStride = kStrideOf;
  static constexpr int kMaxLatent = kLatentOf > 0 ? kLatentOf : kStride < 512 ? kStride : 512;
  static constexpr bool kExact = kLatentOf > 0;  // for aligned rows of this size only
  static constexpr int kBlocksPerSm = kBlocksPerSmOf;
  static constexpr int kKeysPerWarp = 64 / (kWarps / kHeadTiles);  // whose scores a warp computes
  static constexpr int kColumnBlocks = kMaxLatent / 16 / kWarps;   // 16 columns each, kWarps blocks apart
  static constexpr int kStateFloats = kHeads * kMaxLatent;
  static_assert(kKeysPerWarp % 16 == 0 && kColumnBlocks * 16 * kWarps == kMaxLatent);

  static __device__ __forceinline__ int Latent(const KvLayer& layer) {
    return kLatentOf > 0 ? kLatentOf : layer.latent_dim;
  }
  static __device__ __forceinline__ int Width(const KvLayer& layer) {
    return kWidthOf > 0 ? kWidthOf : layer.row_width();
  }
};

using R1DecodeShape = DecodeShape<4, 8, 576, 512, 576, 1>;  // 64 heads, 512 + 64
using WideDecodeShape = DecodeShape<1, 4, 576, 0, 0, 1>;    // up to 512 and 576 together
using NarrowDecodeShape = DecodeShape<1, 4, 128, 0, 0, 4>;  // up to 128 together

template <class Shape>
void LaunchDecodeItems(Stream& stream, const DecodePlan& plan, int32_t blocks);

// R1DecodeShape's items by Hopper's own instructions; the layers whose blocks it can copy.
void LaunchDecodeHopper(Stream& stream, const DecodePlan& plan, int32_t blocks);
bool HopperTakesDecode(const KvLayer& layer);

// How MlaDecode does its work; nothing here changes a bit.
struct DecodeChoice {
  int64_t partial_count;  // room for at most so many items' states
  bool hopper = true;     // LaunchDecodeHopper where it can
};
void MlaDecodeBy(const DecodeChoice& choice, Stream& stream, const MlaDecodeParams& p);

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_MLA_DECODE_H_
