#pragma once

// The online softmax of 16 or 64 heads of one row over tiles of keys, by one block, with mma.sync: what
// mla_decode_items.cu and window_attention.cu share. All heads have the same keys, and a key's first elements
// are its value, so the heads are the rows of the matrix products.
//
// For the scores, warp w has 16 heads, from 16 * (w % kHeadTiles), and kKeysPerWarp of the tile's keys. For
// the outputs, every warp has all heads of the block and a share of the value's columns. In between, warps
// exchange maxima and weights through shared memory. A tile's score maximum is exact, weights are summed per
// 16 keys, and each score and each output is one chain of MmaBf16, in ascending order of the row's elements
// and of the keys, so the number of warps and heads of a block does not change bits.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/kv_row.h"

namespace foredraft::cuda {

// The scales of a tile's keys, with FP8 products. They are powers of two or NaN, so they are kept as
// exponents, to save shared memory.
template <class Shape>
struct Fp8Scales {
  static constexpr int8_t kNan = 127;  // no scale is so large
  int8_t exponents[Shape::kStages][Shape::kWeightTiles][kKeyTile];

  static __device__ __forceinline__ int8_t ExponentOf(float scale) {
    const uint32_t biased = __float_as_uint(scale) >> 23 & 255u;
    return biased == 255u ? kNan : static_cast<int8_t>(static_cast<int32_t>(biased) - 127);
  }
};
struct NoFp8Scales {};

template <class Shape>
struct HeadsShared {
  RowTile<Shape::kHeads, Shape::kStride> query;
  RowTile<kKeyTile, Shape::kStride> keys[Shape::kStages];
  RowTile<Shape::kHeads, kKeyTile> weights[Shape::kWeightTiles];  // of the tile's keys
  float tile_max[kKeyTile / Shape::kKeysPerWarp][Shape::kHeads];  // of the raw scores
  float sums[kKeyTile / 16][Shape::kHeads];                       // of weights, per 16 keys of a tile
  [[no_unique_address]] std::conditional_t<(Shape::kWeightTiles > 1), Fp8Scales<Shape>, NoFp8Scales> fp8;
};

// Members are per thread. A thread has two heads of each tile of heads, Head(tile, 0) and Head(tile, 1), and
// pairs of adjacent columns of their outputs.
template <class Shape>
class AttentionHeads {
 public:
  using Shared = HeadsShared<Shape>;
  using Fp8 = Fp8Scales<Shape>;
  static constexpr bool kFp8Products = Shape::kWeightTiles > 1;
  static constexpr int kRounds = kKeyTile / (Shape::kWarps * 4);  // eight lanes load a row
  // A tile whose keys are decoded on the way is stored in kStoreParts parts. kFetchesEarly: registers suffice
  // to hold the next tile's codes while P V of the tile before is computed.
  static constexpr int kStoreParts = Shape::kStride / 16;
  static constexpr bool kFetchesEarly = Shape::kHeadTiles == 1;
  // Whether each partition of a multiprocessor has only one warp: its score products wait for each other,
  // which leaves time to load the next keys.
  static constexpr bool kLoadsWhileScoring = Shape::kExact && Shape::kHeadTiles == 1 && Shape::kStages == 2;

  // Keys have `width` elements, values `value_width`; score_scale is scale * log2 e.
  __device__ __forceinline__ AttentionHeads(Shared& shared, int width, int value_width, float score_scale)
      : shared_(shared),
        lane_(static_cast<int>(threadIdx.x % kWarpLanes)),
        warp_(static_cast<int>(threadIdx.x / kWarpLanes)),
        width_(width),
        value_width_(value_width),
        score_scale_(score_scale) {}

  __device__ __forceinline__ int lane() const { return lane_; }
  __device__ __forceinline__ int warp() const { return warp_; }
  __device__ __forceinline__ int PaddedWidth() const {
    return Shape::kExact ? Shape::kStride : (width_ + 15) / 16 * 16;
  }
  // The head, within the block, of this thread's fragment rows.
  __device__ __forceinline__ int Head(int tile, int half) const { return tile * 16 + half * 8 + lane_ / 4; }
  // The key of a tile that this thread loads in a round, from column lane() % 8 * 8 on.
  __device__ __forceinline__ int CopiedKey(int round) const {
    return (round * Shape::kWarps + warp_) * 4 + lane_ / 8;
  }

  // The key of a tile that this thread looks up: each of the eight lanes that copy parts of the same keys
  // looks up one of them for all eight.
  __device__ __forceinline__ int LookedUpKey() const { return CopiedKey(lane_ % kRounds); }
  // The row of the key that this thread copies in a round, from those that the lanes have looked up. Called
  // by all lanes of a warp together.
  __device__ __forceinline__ const uint8_t* CopiedRow(const uint8_t* looked_up, int round) const {
    const auto address = reinterpret_cast<unsigned long long>(looked_up);
    return reinterpret_cast<const uint8_t*>(__shfl_sync(kAllLanes, address, round, 8));
  }
  // Where this thread's first chunk of its key of a round goes; the next ones are 64 columns apart.
  __device__ __forceinline__ bf16* CopiedChunk(int stage, int round) const {
    static_assert(Shape::kWarps * 4 % 8 == 0);  // so the swizzle of all rounds is the same
    return shared_.keys[stage].At(CopiedKey(0), lane_ % 8 * 8) + round * Shape::kWarps * 4 * Shape::kStride;
  }
  // Begins to copy a row of kStride elements (null: zeros) as the key of a round.
  __device__ __forceinline__ void CopyExactKey(int stage, int round, const bf16* row,
                                               const void* any_address) {
    static_assert(Shape::kExact);
    bf16* const chunk = CopiedChunk(stage, round);
    const bf16* const from = (row != nullptr ? row : static_cast<const bf16*>(any_address)) + lane_ % 8 * 8;
#pragma unroll
    for (int column = 0; column < Shape::kStride; column += 64) {
      CpAsync16(chunk + column, from + column, row != nullptr);
    }
  }

  // Loads row_of(i), which is RowParts, as the query of head i of the block; FillChunk describes the other
  // parameters.
  template <class RowOf>
  __device__ __forceinline__ void LoadQuery(const RowOf& row_of, bool aligned, const void* any_address) {
    const int first = lane_ % 8 * 8;
    for (int i = warp_ * 4 + lane_ / 8; i < Shape::kHeads; i += Shape::kWarps * 4) {
      const RowParts row = row_of(i);
      bf16* const chunk = shared_.query.At(i, first);
#pragma unroll
      for (int line = 0; line < PaddedWidth(); line += 64) {
        if (line + first < PaddedWidth()) FillChunk(chunk + line, row, line + first, aligned, any_address);
      }
    }
  }

  // With FP8 products: rounds the first `latent` elements of the queries, as a row of the cache is.
  __device__ __forceinline__ void RoundQuery(int latent) {
    using Codes = KvCodes<DType::kF8E4M3>;
    constexpr int kOfLane = KvRowLayout::kLatentGroup / kWarpLanes;
    CpAsyncCommit();
    CpAsyncWait<0>();
    __syncthreads();
    for (int i = warp_; i < Shape::kHeads * Shape::kWeightTiles; i += Shape::kWarps) {
      const int first = i % Shape::kWeightTiles * KvRowLayout::kLatentGroup + lane_;
      uint32_t largest = 0;
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) {
        const int column = first + j * kWarpLanes;
        if (column < latent)
          largest = max(largest, KvMagnitude(*shared_.query.At(i / Shape::kWeightTiles, column)));
      }
#pragma unroll
      for (int other = 1; other < kWarpLanes; other *= 2) {
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, other));
      }
      const float scale = Codes::Scale(largest);
      const float inverse = 1.0f / scale;
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) {
        const int column = first + j * kWarpLanes;
        if (column >= latent) continue;
        bf16& element = *shared_.query.At(i / Shape::kWeightTiles, column);
        element = Codes::Value(Codes::Code(element, inverse), scale);
      }
    }
  }

  // Begins a softmax without keys: first_max(head), at least kFirstMax, is the running maximum.
  template <class FirstMax>
  __device__ __forceinline__ void Clear(const FirstMax& first_max) {
#pragma unroll
    for (int i = 0; i < Shape::kHeadTiles * 2; ++i) max_[i / 2][i % 2] = first_max(Head(i / 2, i % 2));
#pragma unroll
    for (int tile = 0; tile < Shape::kHeadTiles; ++tile) {
#pragma unroll
      for (int block = 0; block < Shape::kColumnBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 8; ++i) out_[tile][block][i / 4][i % 4] = 0.0f;
      }
    }
#pragma unroll
    for (int group = 0; group < kScoreGroups; ++group) sum_[group][0] = sum_[group][1] = 0.0f;
  }

  // Attends tiles [begin, end) of keys, and shares the sums of weights with all warps.
  //
  // clang-format off
  //   keys.Locate(tile)               looks up this thread's rows of a tile: a tile ahead, to hide the latency of
  //                                   the block table
  //   keys.Load(stage)                begins to copy the rows located last to Shared::keys[stage]
  //   keys.LoadPart(stage, tile, part)
  //                                   if kLoadsWhileScoring: a part of Load(stage), CpAsyncCommit() and
  //                                   Locate(tile + 2), also past the last tile, where rows are null
  //   keys.Fetch()                    loads into registers what has to be decoded: of the rows located last or,
  //                                   without kFetchesEarly, of those located before them
  //   keys.Store(stage, part)         decodes and stores one of kStoreParts parts of the rows fetched last
  //   keys.Attended(stage, tile, i)   whether the row attends key i of the tile
  // clang-format on
  template <class Keys>
  __device__ __forceinline__ void Attend(Keys& keys, int32_t begin, int32_t end) {
    keys.Locate(begin);
    keys.Load(0);
    CpAsyncCommit();
    if (!kFetchesEarly) keys.Locate(begin + 1);
    keys.Fetch();
#pragma unroll
    for (int part = 0; part < kStoreParts; ++part) keys.Store(0, part);
    if (kFetchesEarly) keys.Locate(begin + 1);
    if (kFetchesEarly) keys.Fetch();
    for (int32_t tile = begin; tile < end; ++tile) {
      const int stage = (tile - begin) % Shape::kStages;
      CpAsyncWait<0>();
      __syncthreads();  // this tile has arrived, and the previous tile's stage is free
      if (Shape::kStages == 2 && !kLoadsWhileScoring) LoadNext(keys, tile, end, 1 - stage);
      if (!kFetchesEarly) keys.Fetch();
      float scores[kScoreTiles][4];
      Score(
          shared_.keys[stage], [&](int i) { return keys.Attended(stage, tile, i); },
          [&](int part) {
            if constexpr (kLoadsWhileScoring) keys.LoadPart(1 - stage, tile, part);
            keys.Store(1 - stage, part);
          },
          scores);
      if constexpr (kFp8Products) FindLargest(stage, [&](int i) { return keys.Attended(stage, tile, i); });
      __syncthreads();
      Softmax(scores, stage);
      __syncthreads();
      if (kFetchesEarly) keys.Fetch();
      MultiplyValues(shared_.keys[stage]);
      if (Shape::kStages == 1) {
        __syncthreads();  // all warps have used the tile
        LoadNext(keys, tile, end, 0);
      }
    }
    CpAsyncWait<0>();  // no copy outlives its shared memory
    ShareSums();
  }

  // The running maximum of Head(tile, half), in units of log2.
  __device__ __forceinline__ float Max(int tile, int half) const { return max_[tile][half]; }
  // The sum of a head's weights, once Attend has returned.
  __device__ __forceinline__ float Sum(int head) const {
    return (shared_.sums[0][head] + shared_.sums[1][head]) + (shared_.sums[2][head] + shared_.sums[3][head]);
  }
  // Unnormalised outputs of two adjacent columns, `pair` < 2 * kColumnBlocks: of Head(tile, 0), then of
  // Head(tile, 1).
  __device__ __forceinline__ float (&Outputs(int tile, int pair))[4] {
    return out_[tile][pair / 2][pair % 2];
  }

  // Calls visit(tile, half, head) for this thread's heads below `head_count`.
  template <class Visit>
  __device__ __forceinline__ void ForEachHead(int head_count, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < Shape::kHeadTiles * 2; ++i) {
      if (Head(i / 2, i % 2) < head_count) visit(i / 2, i % 2, Head(i / 2, i % 2));
    }
  }
  // Calls visit(outputs, column, count) for this thread's pairs of outputs of Head(tile, half) inside the
  // value; `count` (1 or 2) columns of the pair are inside.
  template <class Visit>
  __device__ __forceinline__ void ForEachPair(int tile, int half, const Visit& visit) {
#pragma unroll
    for (int pair = 0; pair < Shape::kColumnBlocks * 2; ++pair) {
      const int column = BlockColumn(pair / 2) + pair % 2 * 8 + lane_ % 4 * 2;
      const int count = min(value_width_ - column, 2);
      if (count > 0) visit(&Outputs(tile, pair)[half * 2], column, count);
    }
  }

 private:
  using KeyRows = RowTile<kKeyTile, Shape::kStride>;
  static constexpr int kScoreTiles = Shape::kKeysPerWarp / 8;
  static constexpr int kScoreGroups = kScoreTiles / 2;

  __device__ __forceinline__ int ScoreHeadTile() const { return warp_ % Shape::kHeadTiles; }
  __device__ __forceinline__ int FirstScoreKey() const {
    return warp_ / Shape::kHeadTiles * Shape::kKeysPerWarp;
  }
  __device__ __forceinline__ int BlockColumn(int block) const { return (block * Shape::kWarps + warp_) * 16; }

  template <class Keys>
  __device__ __forceinline__ void LoadNext(Keys& keys, int32_t tile, int32_t end, int stage) {
    if (tile + 1 >= end) return;
    keys.Load(stage);
    CpAsyncCommit();
    keys.Locate(tile + 2);
  }

  // Adds 16 columns to the raw scores. `query` and `key`: the addresses that this lane passes to ldmatrix,
  // `key` for the first group of keys.
  __device__ __forceinline__ void ScoreColumns(const bf16* query, const bf16* key,
                                               float (&scores)[kScoreTiles][4]) {
    uint32_t a[4];
    LdMatrix4(a, query);
#pragma unroll
    for (int group = 0; group < kScoreGroups; ++group) {
      uint32_t b[4];
      LdMatrix4(b, key + group * 16 * Shape::kStride);
      MmaPair(scores[2 * group], scores[2 * group + 1], a, b);
    }
  }

  // Computes the raw scores of this warp's heads and keys; shares their maxima. A score waits for its
  // previous 16 columns; meanwhile(part) is called then, to do one of kStoreParts parts of other work.
  template <class Attended, class Meanwhile>
  __device__ __forceinline__ void Score(KeyRows& keys, const Attended& attended, const Meanwhile& meanwhile,
                                        float (&scores)[kScoreTiles][4]) {
#pragma unroll
    for (int i = 0; i < kScoreTiles * 4; ++i) scores[i / 4][i % 4] = 0.0f;
    const FragmentRow a(shared_.query, ScoreHeadTile() * 16 + (lane_ & 15), lane_ / 16 * 8);
    const FragmentRow b(keys, FirstScoreKey() + lane_ / 16 * 8 + lane_ % 8, lane_ / 8 % 2 * 8);
    const int lines_end = PaddedWidth() / 64 * 64;
#pragma unroll
    for (int line = 0; line < lines_end; line += 64) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ScoreColumns(a.At(line, step), b.At(line, step), scores);
        meanwhile(line / 16 + step);
      }
    }
#pragma unroll
    for (int step = 0; step < 3; ++step) {
      if (lines_end + 16 * step >= PaddedWidth()) break;
      ScoreColumns(a.At(lines_end, step), b.At(lines_end, step), scores);
    }
    float largest[2] = {kMaskedScore, kMaskedScore};
#pragma unroll
    for (int i = 0; i < kScoreTiles * 4; ++i) {
      float& score = scores[i / 4][i % 4];
      if (!attended(FirstScoreKey() + i / 4 * 8 + lane_ % 4 * 2 + i % 2)) score = kMaskedScore;
      largest[i % 4 / 2] = fmaxf(largest[i % 4 / 2], score);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float row_max = QuadMax(largest[half]);
      if (lane_ % 4 == 0) {
        shared_.tile_max[warp_ / Shape::kHeadTiles][Head(ScoreHeadTile(), half)] = row_max;
      }
    }
  }

  // Online softmax: updates the running maximum, rescales the running sums and outputs, and shares this
  // warp's weights.
  __device__ __forceinline__ void Softmax(float (&scores)[kScoreTiles][4], int stage) {
    float own_max[2] = {};
    float own_keep[2] = {};
#pragma unroll
    for (int i = 0; i < Shape::kHeadTiles * 2; ++i) {
      const int tile = i / 2, half = i % 2;
      float tile_max = kMaskedScore;
#pragma unroll
      for (int group = 0; group < kKeyTile / Shape::kKeysPerWarp; ++group) {
        tile_max = fmaxf(tile_max, shared_.tile_max[group][Head(tile, half)]);
      }
      const float next = fmaxf(max_[tile][half], tile_max * score_scale_);
      const float keep = exp2f(max_[tile][half] - next);
      max_[tile][half] = next;
#pragma unroll
      for (int block = 0; block < Shape::kColumnBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out_[tile][block][j / 2][half * 2 + j % 2] *= keep;
      }
      if (tile == ScoreHeadTile()) {
        own_max[half] = next;
        own_keep[half] = keep;
      }
    }
#pragma unroll
    for (int i = 0; i < kScoreGroups * 2; ++i) {
      const int group = i / 2, half = i % 2;
      float pairs[2];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const float* pair = &scores[2 * group + side][half * 2];
        const float w0 = exp2f(fmaf(pair[0], score_scale_, -own_max[half]));
        const float w1 = exp2f(fmaf(pair[1], score_scale_, -own_max[half]));
        const int key = FirstScoreKey() + group * 16 + side * 8 + lane_ % 4 * 2;
#pragma unroll
        for (int tile = 0; tile < Shape::kWeightTiles; ++tile) {
          // Eight heads further the swizzle is the same.
          bf16* const weights = shared_.weights[tile].At(Head(ScoreHeadTile(), 0), key) + half * 8 * kKeyTile;
          *reinterpret_cast<uint32_t*>(weights) =
              PackBf16(Rounded(w0, stage, tile, key), Rounded(w1, stage, tile, key + 1));
        }
        pairs[side] = w0 + w1;
      }
      sum_[group][half] = fmaf(sum_[group][half], own_keep[half], pairs[0] + pairs[1]);
    }
  }

  // With FP8 products: finds Largest(), a warp for each group of columns.
  template <class Attended>
  __device__ __forceinline__ void FindLargest(int stage, const Attended& attended) {
    static_assert(Shape::kWarps >= Shape::kWeightTiles && kKeyTile == 2 * kWarpLanes);
    if (warp_ >= Shape::kWeightTiles) return;
    int32_t largest = KvCodes<DType::kF8E4M3>::kMinExponent;
#pragma unroll
    for (int key = lane_; key < kKeyTile; key += kWarpLanes) {
      if (attended(key))
        largest = max(largest, static_cast<int32_t>(shared_.fp8.exponents[stage][warp_][key]));
    }
#pragma unroll
    for (int other = 1; other < kWarpLanes; other *= 2) {
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, other));
    }
    if (lane_ == 0) Largest(warp_) = static_cast<float>(largest);
  }

  // The largest exponent of the attended keys in a group of columns. Shared memory has room for it only where
  // ShareSums puts its sums later.
  __device__ __forceinline__ float& Largest(int tile) const { return shared_.sums[0][tile]; }

  // The weight by which the values of a group of columns are multiplied: with FP8 products E4M3(2^8 w s / S),
  // divided by 2^8 s / S. BF16 holds it exactly, so its product with a value is that of the codes.
  __device__ __forceinline__ float Rounded(float weight, int stage, int tile, int key) const {
    if constexpr (kFp8Products) {
      const int32_t exponent = shared_.fp8.exponents[stage][tile][key];
      if (exponent == Fp8::kNan) return __uint_as_float(0x7fc00000u);
      // With a scale so far below the largest one, every weight is rounded to 0. The upper limit is for keys
      // that are not attended: their weight is 0.
      constexpr int32_t kLeast = -40;
      const int32_t up = 8 + min(max(exponent - static_cast<int32_t>(Largest(tile)), kLeast), 0);
      const float rounded =
          KvCodes<DType::kF8E4M3>::Nearest(weight * __uint_as_float(static_cast<uint32_t>(127 + up) << 23));
      return rounded * __uint_as_float(static_cast<uint32_t>(127 - up) << 23);
    } else {
      return weight;
    }
  }

  __device__ __forceinline__ void MultiplyValues(KeyRows& keys) {
    // Blocks of columns begin whole swizzle lines apart, so each is at a constant offset from `values`.
    static_assert(Shape::kWarps * 16 % 64 == 0);
    constexpr int kBlocksOfTile = Shape::kColumnBlocks / Shape::kWeightTiles;
    static_assert(kBlocksOfTile * Shape::kWeightTiles == Shape::kColumnBlocks);
    const FragmentRow weights(shared_.weights[0], lane_ & 15, lane_ / 16 * 8);
    const bf16* const values = keys.At(lane_ & 15, BlockColumn(0) + lane_ / 16 * 8);
#pragma unroll
    for (int key = 0; key < kKeyTile; key += 16) {
      uint32_t a[Shape::kHeadTiles][4];
#pragma unroll
      for (int block = 0; block < Shape::kColumnBlocks; ++block) {
        if (block % kBlocksOfTile == 0) {
          const int first =
              block / kBlocksOfTile * static_cast<int>(sizeof(shared_.weights[0]) / sizeof(bf16));
#pragma unroll
          for (int tile = 0; tile < Shape::kHeadTiles; ++tile) {
            LdMatrix4(a[tile], weights.At(first + tile * 16 * kKeyTile, key / 16));
          }
        }
        if (!Shape::kExact && BlockColumn(block) >= value_width_) continue;
        uint32_t b[4];
        LdMatrix4Transposed(b, values + key * Shape::kStride + block * Shape::kWarps * 16);
#pragma unroll
        for (int tile = 0; tile < Shape::kHeadTiles; ++tile) {
          MmaPair(out_[tile][block][0], out_[tile][block][1], a[tile], b);
        }
      }
    }
  }

  __device__ __forceinline__ void ShareSums() {
#pragma unroll
    for (int i = 0; i < kScoreGroups * 2; ++i) {
      const float sum = QuadSum(sum_[i / 2][i % 2]);
      if (lane_ % 4 == 0) shared_.sums[FirstScoreKey() / 16 + i / 2][Head(ScoreHeadTile(), i % 2)] = sum;
    }
    __syncthreads();
  }

  Shared& shared_;
  const int lane_;
  const int warp_;
  const int width_;
  const int value_width_;
  const float score_scale_;

  float max_[Shape::kHeadTiles][2];                           // of Head(tile, half), in units of log2
  float sum_[kScoreGroups][2];                                // of this thread's weights
  float out_[Shape::kHeadTiles][Shape::kColumnBlocks][2][4];  // two MmaBf16 results each
};

}  // namespace foredraft::cuda
