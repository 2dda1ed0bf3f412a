// Attention of one row and 16 or 64 heads by one block: mma.sync over tiles of 64 keys, which cp.async loads
// from the forward's rows and from the paged cache. All heads share the keys, which are also the values, so
// the heads are the rows of the matrix products.
//
// A row's keys are one list: the raw keys by ascending position, then its entries. Tiles are counted from the
// start of this list, and the softmax goes through them in order, so a row's own list alone fixes its bits;
// where a key lies in memory does not matter. A tile's score maximum is exact, weights are summed per 16
// keys, and each score and each output is one chain of MmaBf16 in ascending order of elements and of keys, so
// neither do the heads and warps of a block.

#include "base/check.h"
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/attention/mapped_row.h"
#include "kernels/cuda/attention/window_attention.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

constexpr int kKeyGroups = kKeyTile / 16;  // a row's weights are summed per 16 keys of a tile

struct AttentionPlan {
  WindowAttentionParams op;
  float score_scale;   // scale * log2 e
  int32_t head_tiles;  // blocks of a row
  int32_t aligned;     // 16-byte copies and paired stores are possible
};

// Tile sizes of a block.
//
// clang-format off
//   kHeadTiles  16 heads each
//   kWarps      a multiple of kHeadTiles
//   kStride     elements of a row in shared memory, at least the width
//   kStages     tiles of keys in shared memory: with 2, the next one loads while this one is used
//   kExact      only for aligned rows of kStride elements
// clang-format on
template <int kHeadTilesOf, int kWarpsOf, int kStrideOf, int kStagesOf, bool kExactOf, int kBlocksPerSmOf>
struct AttentionShape {
  static constexpr int kHeadTiles = kHeadTilesOf;
  static constexpr int kHeads = kHeadTiles * 16;
  static constexpr int kWarps = kWarpsOf;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStride = kStrideOf;
  static constexpr int kStages = kStagesOf;
  static constexpr bool kExact = kExactOf;
  static constexpr int kBlocksPerSm = kBlocksPerSmOf;
  static constexpr int kKeysPerWarp = kKeyTile / (kWarps / kHeadTiles);  // whose scores a warp computes
  static constexpr int kColumnBlocks = kStride / 16 / kWarps;  // 16 columns each, kWarps blocks apart
  static_assert(kKeysPerWarp % 16 == 0 && kColumnBlocks * 16 * kWarps == kStride);
};

using ManyHeadsShape = AttentionShape<4, 8, 512, 2, true, 1>;  // 201 KB
using FewHeadsShape = AttentionShape<1, 4, 512, 2, false, 1>;  // 147 KB
using OneStageShape = AttentionShape<1, 4, 512, 1, false, 1>;  // 83 KB, for GPUs with 99 KB
using NarrowShape = AttentionShape<1, 4, 128, 2, false, 4>;    // 39 KB, up to 128 wide

template <class Shape>
struct AttentionShared {
  RowTile<Shape::kHeads, Shape::kStride> query;
  RowTile<kKeyTile, Shape::kStride> keys[Shape::kStages];
  RowTile<Shape::kHeads, kKeyTile> weights;                       // of the tile's keys
  float tile_max[kKeyTile / Shape::kKeysPerWarp][Shape::kHeads];  // of the raw scores
  float sums[kKeyGroups][Shape::kHeads];
  int32_t present[Shape::kStages][kKeyTile];  // 0: past the row's keys
};

// The keys that a row attends, in order: raw keys of [first, position], then its entries.
struct AttendedKeys {
  const WindowAttentionParams& p;
  int32_t row;
  int32_t slot;
  int32_t position;
  int32_t first;
  int32_t raw_count;
  int32_t count;  // of all; with `selected` the last ones may be none

  __device__ __forceinline__ AttendedKeys(const WindowAttentionParams& params, int32_t r)
      : p(params), row(r), slot(params.index.slots[r]), position(params.index.positions[r]) {
    first = max(p.first_position, position - p.window_len + 1);
    raw_count = position + 1 - first;
    const int32_t visible = p.ratio == 0 ? 0 : (position + 1) / p.ratio;
    count = raw_count + (p.selected == nullptr ? visible : min(visible, p.selected_count));
  }

  // Null past the last key.
  __device__ __forceinline__ const bf16* operator[](int32_t i) const {
    if (i >= count) return nullptr;
    if (i < raw_count) {
      const int64_t at = RowAt(p.index, row, first + i);
      return at >= 0 ? p.keys.row(at) : MappedRow(p.window, slot, first + i);
    }
    int32_t entry = i - raw_count;
    if (p.selected != nullptr) entry = p.selected[static_cast<int64_t>(row) * p.selected_count + entry];
    return entry < 0 ? nullptr : MappedRow(p.entries, slot, entry);
  }
};

// The attention of one row and one tile of heads by one block; members are per thread.
template <class Shape>
class RowAttention {
 public:
  using Shared = AttentionShared<Shape>;
  using KeyRows = RowTile<kKeyTile, Shape::kStride>;

  __device__ __forceinline__ RowAttention(const AttentionPlan& p, int32_t row, int32_t head_tile,
                                          Shared& shared)
      : p_(p),
        shared_(shared),
        attended_(p.op, row),
        first_head_(head_tile * Shape::kHeads),
        lane_(static_cast<int>(threadIdx.x % kWarpLanes)),
        warp_(static_cast<int>(threadIdx.x / kWarpLanes)),
        width_(Shape::kExact ? Shape::kStride : p.op.keys.cols) {}

  __device__ __forceinline__ void Run() {
    LoadQuery();
    Clear();
    const int32_t tiles = (attended_.count + kKeyTile - 1) / kKeyTile;  // at least 1: the row's own key
    LocateKeys(0);
    LoadKeyTile(0);
    LocateKeys(1);
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const int stage = tile % Shape::kStages;
      CpAsyncWait<0>();
      __syncthreads();  // this tile has arrived, and the previous tile's stage is free
      if (Shape::kStages == 2) LoadNext(tile, tiles, 1 - stage);
      float scores[kScoreTiles][4];
      Score(shared_.keys[stage], shared_.present[stage], scores);
      __syncthreads();
      Weigh(scores);
      __syncthreads();
      AddValues(shared_.keys[stage]);
      if (Shape::kStages == 1) {
        __syncthreads();  // all warps have used the tile
        LoadNext(tile, tiles, 0);
      }
    }
    ShareSums();
    StoreOutput();
  }

 private:
  static constexpr int kRounds = kKeyTile / (Shape::kWarps * 4);  // eight lanes load a row
  static constexpr int kScoreTiles = Shape::kKeysPerWarp / 8;
  static constexpr int kScoreGroups = kScoreTiles / 2;

  __device__ __forceinline__ bool Aligned() const { return Shape::kExact || p_.aligned; }
  __device__ __forceinline__ int PaddedWidth() const { return (width_ + 15) / 16 * 16; }
  __device__ __forceinline__ int ScoreHeadTile() const { return warp_ % Shape::kHeadTiles; }
  __device__ __forceinline__ int FirstScoreKey() const {
    return warp_ / Shape::kHeadTiles * Shape::kKeysPerWarp;
  }
  // The head, within the block, of this thread's fragment rows.
  __device__ __forceinline__ int Head(int tile, int half) const { return tile * 16 + half * 8 + lane_ / 4; }
  __device__ __forceinline__ int BlockColumn(int block) const { return (block * Shape::kWarps + warp_) * 16; }
  // The sink in units of log2; of heads past the last one it does not matter.
  __device__ __forceinline__ float Sink(int head) const {
    return first_head_ + head < p_.op.head_count ? p_.op.sinks[first_head_ + head] * kLog2E : 0.0f;
  }

  // Eight lanes load a row; zeros past its end, and for a null one.
  template <class Tile>
  __device__ __forceinline__ void FillRow(Tile& tile, int i, const bf16* x) {
    const RowParts row = {x, nullptr, width_, width_};
#pragma unroll 4
    for (int column = lane_ % 8 * 8; column < PaddedWidth(); column += 64) {
      FillChunk(tile.At(i, column), row, column, Aligned(), p_.op.q.data);
    }
  }
  __device__ __forceinline__ void LoadQuery() {
    for (int i = warp_ * 4 + lane_ / 8; i < Shape::kHeads; i += Shape::kWarps * 4) {
      const int32_t head = first_head_ + i;
      FillRow(shared_.query, i,
              head < p_.op.head_count ? p_.op.q.row(attended_.row) + static_cast<int64_t>(head) * width_
                                      : nullptr);
    }
  }

  __device__ __forceinline__ int CopiedKey(int round) const {
    return (round * Shape::kWarps + warp_) * 4 + lane_ / 8;
  }
  // Looks up the rows that this thread will load: a tile ahead, to hide the latency of the block table.
  __device__ __forceinline__ void LocateKeys(int32_t tile) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      key_rows_[round] = attended_[tile * kKeyTile + CopiedKey(round)];
    }
  }
  __device__ __forceinline__ void LoadKeyTile(int stage) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      FillRow(shared_.keys[stage], CopiedKey(round), key_rows_[round]);
      if (lane_ % 8 == 0) shared_.present[stage][CopiedKey(round)] = key_rows_[round] != nullptr;
    }
    CpAsyncCommit();
  }
  __device__ __forceinline__ void LoadNext(int32_t tile, int32_t tiles, int stage) {
    if (tile + 1 >= tiles) return;
    LoadKeyTile(stage);
    LocateKeys(tile + 2);
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < Shape::kHeadTiles * 2; ++i) {
      max_[i / 2][i % 2] = fmaxf(Sink(Head(i / 2, i % 2)), kFirstMax);
    }
#pragma unroll
    for (int i = 0; i < Shape::kHeadTiles * Shape::kColumnBlocks * 8; ++i) {
      out_[i / 8 / Shape::kColumnBlocks][i / 8 % Shape::kColumnBlocks][i / 4 % 2][i % 4] = 0.0f;
    }
#pragma unroll
    for (int group = 0; group < kScoreGroups; ++group) sum_[group][0] = sum_[group][1] = 0.0f;
  }

  // Computes the raw scores of this warp's heads and keys; shares their maxima.
  __device__ __forceinline__ void Score(KeyRows& keys, const int32_t* present,
                                        float (&scores)[kScoreTiles][4]) {
#pragma unroll
    for (int i = 0; i < kScoreTiles * 4; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll 4
    for (int column = 0; column < PaddedWidth(); column += 16) {
      uint32_t a[4];
      LoadA(a, shared_.query, ScoreHeadTile() * 16, column, lane_);
#pragma unroll
      for (int group = 0; group < kScoreGroups; ++group) {
        uint32_t b[4];
        LoadKeys(b, keys, FirstScoreKey() + group * 16, column, lane_);
        MmaPair(scores[2 * group], scores[2 * group + 1], a, b);
      }
    }
    float largest[2] = {kMaskedScore, kMaskedScore};
#pragma unroll
    for (int i = 0; i < kScoreTiles * 4; ++i) {
      float& score = scores[i / 4][i % 4];
      if (present[FirstScoreKey() + i / 4 * 8 + lane_ % 4 * 2 + i % 2] == 0) score = kMaskedScore;
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
  __device__ __forceinline__ void Weigh(float (&scores)[kScoreTiles][4]) {
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
      const float next = fmaxf(max_[tile][half], tile_max * p_.score_scale);
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
        const float w0 = exp2f(fmaf(pair[0], p_.score_scale, -own_max[half]));
        const float w1 = exp2f(fmaf(pair[1], p_.score_scale, -own_max[half]));
        const int key = FirstScoreKey() + group * 16 + side * 8 + lane_ % 4 * 2;
        *reinterpret_cast<uint32_t*>(shared_.weights.At(Head(ScoreHeadTile(), half), key)) = PackBf16(w0, w1);
        pairs[side] = w0 + w1;
      }
      sum_[group][half] = fmaf(sum_[group][half], own_keep[half], pairs[0] + pairs[1]);
    }
  }

  __device__ __forceinline__ void AddValues(KeyRows& keys) {
#pragma unroll 1
    for (int key = 0; key < kKeyTile; key += 16) {
      uint32_t a[Shape::kHeadTiles][4];
#pragma unroll
      for (int tile = 0; tile < Shape::kHeadTiles; ++tile)
        LoadA(a[tile], shared_.weights, tile * 16, key, lane_);
#pragma unroll
      for (int block = 0; block < Shape::kColumnBlocks; ++block) {
        if (BlockColumn(block) >= width_) continue;
        uint32_t b[4];
        LoadValues(b, keys, key, BlockColumn(block), lane_);
#pragma unroll
        for (int tile = 0; tile < Shape::kHeadTiles; ++tile) {
          MmaPair(out_[tile][block][0], out_[tile][block][1], a[tile], b);
        }
      }
    }
  }

  // Shares the sums of weights with all warps.
  __device__ __forceinline__ void ShareSums() {
#pragma unroll
    for (int i = 0; i < kScoreGroups * 2; ++i) {
      const float sum = QuadSum(sum_[i / 2][i % 2]);
      if (lane_ % 4 == 0) shared_.sums[FirstScoreKey() / 16 + i / 2][Head(ScoreHeadTile(), i % 2)] = sum;
    }
    __syncthreads();
  }

  __device__ __forceinline__ void StoreOutput() {
#pragma unroll
    for (int i = 0; i < Shape::kHeadTiles * 2; ++i) {
      const int tile = i / 2, half = i % 2, head = Head(tile, half);
      if (first_head_ + head >= p_.op.head_count) continue;
      const float weights =
          (shared_.sums[0][head] + shared_.sums[1][head]) + (shared_.sums[2][head] + shared_.sums[3][head]);
      const float factor = 1.0f / (weights + exp2f(Sink(head) - max_[tile][half]));
      float* const out = p_.op.out.row(attended_.row) + static_cast<int64_t>(first_head_ + head) * width_;
#pragma unroll
      for (int j = 0; j < Shape::kColumnBlocks * 2; ++j) {
        const int column = BlockColumn(j / 2) + j % 2 * 8 + lane_ % 4 * 2;
        if (column >= width_) continue;
        const float* const sums = &out_[tile][j / 2][j % 2][half * 2];
        if (Aligned()) {
          *reinterpret_cast<float2*>(out + column) = make_float2(sums[0] * factor, sums[1] * factor);
        } else {
          out[column] = sums[0] * factor;
          if (column + 1 < width_) out[column + 1] = sums[1] * factor;
        }
      }
    }
  }

  const AttentionPlan& p_;
  Shared& shared_;
  const AttendedKeys attended_;
  const int32_t first_head_;
  const int lane_;
  const int warp_;
  const int width_;

  const bf16* key_rows_[kRounds];                             // of the next tile; null: no key
  float max_[Shape::kHeadTiles][2];                           // of Head(tile, half), in units of log2
  float sum_[kScoreGroups][2];                                // of this thread's weights
  float out_[Shape::kHeadTiles][Shape::kColumnBlocks][2][4];  // two MmaBf16 results each
};

// Bytes of a row of V4-Flash: 65,536 of queries, 131,072 of outputs, and 1,024 a key: 128 raw keys, with CSA
// 512 entries more (655,360 in all), with HCA one per 128 tokens. Rows of few heads read the keys four times,
// three of them from L2.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    WindowAttentionKernel(const __grid_constant__ AttentionPlan p) {
  GridDependencySync();
  const int32_t block = static_cast<int32_t>(blockIdx.x);
  const int32_t row = block / p.head_tiles;
  if (p.op.index.slots[row] < 0) return;
  RowAttention<Shape>(p, row, block % p.head_tiles, SharedStorage<AttentionShared<Shape>>()).Run();
}

template <class Shape>
bool Fits() {
  return sizeof(AttentionShared<Shape>) <= SharedMemoryLimit();
}

template <class Shape>
void LaunchAttention(Stream& stream, AttentionPlan plan) {
  plan.head_tiles = (plan.op.head_count + Shape::kHeads - 1) / Shape::kHeads;
  Launch(stream, WindowAttentionKernel<Shape>,
         {.grid = dim3(static_cast<uint32_t>(plan.op.index.rows * plan.head_tiles)),
          .block = dim3(Shape::kThreads),
          .shared_bytes = sizeof(AttentionShared<Shape>)},
         plan);
}

bool Aligned16(const void* pointer, int64_t stride) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % 8 == 0;
}

bool RowsAligned(const WindowAttentionParams& p) {
  return p.keys.cols % 8 == 0 && Aligned16(p.out.data, p.out.stride) && Aligned16(p.q.data, p.q.stride) &&
         Aligned16(p.keys.data, p.keys.stride) && Aligned16(p.window.data, 0) && Aligned16(p.entries.data, 0);
}

}  // namespace

void WindowAttentionBy(const WindowAttentionChoice& choice, Stream& stream, const WindowAttentionParams& p) {
  const int32_t width = p.keys.cols;
  CHECK_LE(width, FewHeadsShape::kStride);
  CHECK_EQ(p.window.width, width);
  CHECK(p.ratio == 0 || p.entries.width == width);
  CHECK_GT(p.scale, 0.0f);
  const AttentionPlan plan = {
      .op = p, .score_scale = p.scale * kLog2E, .head_tiles = 0, .aligned = RowsAligned(p)};
  if (choice.many_heads && width == ManyHeadsShape::kStride && plan.aligned && Fits<ManyHeadsShape>()) {
    LaunchAttention<ManyHeadsShape>(stream, plan);
  } else if (width <= NarrowShape::kStride) {
    LaunchAttention<NarrowShape>(stream, plan);
  } else if (Fits<FewHeadsShape>()) {
    LaunchAttention<FewHeadsShape>(stream, plan);
  } else {
    LaunchAttention<OneStageShape>(stream, plan);
  }
}

void WindowAttention(Stream& stream, const WindowAttentionParams& p) {
  const bool many_rows = p.index.rows >= static_cast<CudaStream&>(stream).multiprocessor_count();
  WindowAttentionBy({.many_heads = many_rows && p.head_count > FewHeadsShape::kHeads}, stream, p);
}

}  // namespace foredraft::cuda
