// The attention of one row, up to 64 heads and one split: mma.sync over tiles of 64 keys, which cp.async
// loads from the paged cache. FP8 rows are decoded on the way, so all else is as for BF16.
//
// For the scores, warp w has 16 heads, from 16 * (w % kHeadTiles), and kKeysPerWarp of the tile's keys. For
// the outputs, every warp has all heads of the item and a share of the latent columns. In between, warps
// exchange maxima and weights through shared memory. Each score and each output is one chain of MmaBf16, in
// ascending order of the row's elements and of the keys, so the number of warps and heads of an item does not
// change bits.

#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/attention/kv_row_load.h"
#include "kernels/cuda/attention/mla_decode.h"
#include "kernels/cuda/attention/mla_decode_search.h"
#include "kernels/cuda/common/ptx.h"

namespace foredraft::cuda {
namespace {

constexpr int kKeyGroups = kKeyTile / 16;  // a row's weights are summed per 16 keys of a tile

template <class Shape>
struct DecodeShared {
  RowTile<Shape::kHeads, Shape::kStride> query;
  RowTile<kKeyTile, Shape::kStride> keys[Shape::kStages];
  RowTile<Shape::kHeads, kKeyTile> weights;                       // of the tile's keys
  float tile_max[kKeyTile / Shape::kKeysPerWarp][Shape::kHeads];  // of the raw scores
  float sums[kKeyGroups][Shape::kHeads];
  float2 folded[Shape::kHeads];  // max, sum of the splits so far
  DecodeItem item;
};

// The attention of one item by one block; members are per thread.
template <class Shape, bool kFp8>
class ItemAttention {
 public:
  using Shared = DecodeShared<Shape>;

  __device__ __forceinline__ ItemAttention(const DecodePlan& p, Shared& shared)
      : p_(p),
        item_(shared.item),
        shared_(shared),
        lane_(threadIdx.x % kWarpLanes),
        warp_(threadIdx.x / kWarpLanes),
        latent_(Shape::Latent(p.op.layer)),
        width_(Shape::Width(p.op.layer)),
        last_position_(p.op.index.positions[shared.item.row]) {}

  __device__ __forceinline__ void Run() {
    LoadQuery();
    for (int32_t i = 0; i < item_.split_count; ++i) {
      const bool last = i + 1 == item_.split_count;
      AttendSplit(item_.first_split + i);
      if (!item_.begins_row) {
        StorePartial(item_.partial + i * p_.head_tiles);
        continue;
      }
      if (item_.folds()) FoldSplit(i == 0, last);
      if (last && item_.partial >= 0) StorePartial(item_.partial);
      if (last && item_.partial < 0) StoreOutput();
    }
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
  // The head, within the item, of this thread's fragment rows.
  __device__ __forceinline__ int Head(int tile, int half) const { return tile * 16 + half * 8 + lane_ / 4; }
  __device__ __forceinline__ int BlockColumn(int block) const { return (block * Shape::kWarps + warp_) * 16; }
  // The first of the two columns this thread has in half `side` of a column block.
  __device__ __forceinline__ int Column(int block, int side) const {
    return BlockColumn(block) + side * 8 + lane_ % 4 * 2;
  }

  __device__ __forceinline__ void LoadQuery() {
    for (int i = warp_ * 4 + lane_ / 8; i < Shape::kHeads; i += Shape::kWarps * 4) {
      const int64_t head = item_.head_tile * Shape::kHeads + i;
      const bool present = head < p_.op.head_count;
      const RowParts row = {present ? p_.op.q_lat.row(item_.row) + head * latent_ : nullptr,
                            p_.op.q.row(item_.row) + (head + 1) * p_.op.head_dim - (width_ - latent_),
                            latent_, width_};
      for (int column = lane_ % 8 * 8; column < PaddedWidth(); column += 64) {
        FillChunk(shared_.query.At(i, column), row, column, Aligned(), p_.op.layer.data);
      }
    }
  }

  __device__ __forceinline__ int CopiedKey(int round) const {
    return (round * Shape::kWarps + warp_) * 4 + lane_ / 8;
  }
  // Looks up the cache rows that this thread will load: a tile ahead, to hide the latency of the block table.
  __device__ __forceinline__ void LocateKeys(int32_t tile) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int32_t position = tile * kKeyTile + CopiedKey(round);
      const bool attended = position >= p_.op.first_position && position <= last_position_;
      key_rows_[round] = attended ? p_.op.layer.row(p_.op.index.slots[item_.row], position) : nullptr;
    }
  }
  // Elements [column, column + 8) of a cache row; zeros past its end, and of a masked row, which is not read.
  __device__ __forceinline__ void FillKey(bf16* chunk, const uint8_t* row, int column) {
    if constexpr (!kFp8) {
      const RowParts parts = {reinterpret_cast<const bf16*>(row), nullptr, width_, width_};
      FillChunk(chunk, parts, column, Aligned(), p_.op.layer.data);
      return;
    }
    const KvRowLayout layout = {latent_, width_ - latent_, true};
    const bool present = row != nullptr && column < width_;
    if (Aligned()) {
      uint4 elements = make_uint4(0, 0, 0, 0);
      if (present) elements = LoadKvEight<true>(row, layout, column);
      *reinterpret_cast<uint4*>(chunk) = elements;
      return;
    }
    for (int i = 0; i < 8; ++i) {
      chunk[i] = present && column + i < width_ ? LoadKvElement<true>(row, layout, column + i) : bf16{0};
    }
  }
  __device__ __forceinline__ void LoadKeyTile(int stage) {
    // FP8 rows pass through registers, of which R1's shape has few left.
    [[maybe_unused]] constexpr int kUnroll = kFp8 ? 1 : 3;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
#pragma unroll kUnroll
      for (int column = lane_ % 8 * 8; column < PaddedWidth(); column += 64) {
        FillKey(shared_.keys[stage].At(CopiedKey(round), column), key_rows_[round], column);
      }
    }
  }

  __device__ __forceinline__ void AttendSplit(int32_t split) {
    Clear();
    const auto [begin, end] = SplitTiles(p_.op, item_.split_len, split, last_position_);
    LocateKeys(begin);
    LoadKeyTile(0);
    CpAsyncCommit();
    LocateKeys(begin + 1);
    for (int32_t tile = begin; tile < end; ++tile) {
      const int stage = (tile - begin) % Shape::kStages;
      CpAsyncWait<0>();
      __syncthreads();  // this tile has arrived, and the previous tile's stage is free
      if (Shape::kStages == 2) LoadNext(tile, end, 1 - stage);
      float scores[kScoreTiles][4];
      Score(shared_.keys[stage], tile * kKeyTile + FirstScoreKey(), scores);
      __syncthreads();
      Weigh(scores);
      __syncthreads();
      AddValues(shared_.keys[stage]);
      if (Shape::kStages == 1) {
        __syncthreads();  // all warps have used the tile
        LoadNext(tile, end, 0);
      }
    }
    ShareSums();
  }

  __device__ __forceinline__ void LoadNext(int32_t tile, int32_t end, int stage) {
    if (tile + 1 >= end) return;
    LoadKeyTile(stage);
    CpAsyncCommit();
    LocateKeys(tile + 2);
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int tile = 0; tile < Shape::kHeadTiles; ++tile) {
      max_[tile][0] = max_[tile][1] = kFirstMax;
#pragma unroll
      for (int block = 0; block < Shape::kColumnBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 8; ++i) out_[tile][block][i / 4][i % 4] = 0.0f;
      }
    }
#pragma unroll
    for (int group = 0; group < kScoreGroups; ++group) sum_[group][0] = sum_[group][1] = 0.0f;
  }

  // Computes the raw scores of this warp's heads and keys, the first key at `position`; shares their maxima.
  __device__ __forceinline__ void Score(RowTile<kKeyTile, Shape::kStride>& keys, int32_t position,
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
      const int32_t at = position + i / 4 * 8 + lane_ % 4 * 2 + i % 2;
      float& score = scores[i / 4][i % 4];
      if (at < p_.op.first_position || at > last_position_) score = kMaskedScore;
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

  __device__ __forceinline__ void AddValues(RowTile<kKeyTile, Shape::kStride>& keys) {
#pragma unroll 1
    for (int key = 0; key < kKeyTile; key += 16) {
      uint32_t a[Shape::kHeadTiles][4];
#pragma unroll
      for (int tile = 0; tile < Shape::kHeadTiles; ++tile) {
        LoadA(a[tile], shared_.weights, tile * 16, key, lane_);
      }
#pragma unroll
      for (int block = 0; block < Shape::kColumnBlocks; ++block) {
        if (BlockColumn(block) >= latent_) continue;
        uint32_t b[4];
        LoadValues(b, keys, key, BlockColumn(block), lane_);
#pragma unroll
        for (int tile = 0; tile < Shape::kHeadTiles; ++tile) {
          MmaPair(out_[tile][block][0], out_[tile][block][1], a[tile], b);
        }
      }
    }
  }

  // Shares the split's sums of weights with all warps.
  __device__ __forceinline__ void ShareSums() {
#pragma unroll
    for (int i = 0; i < kScoreGroups * 2; ++i) {
      const float sum = QuadSum(sum_[i / 2][i % 2]);
      if (lane_ % 4 == 0) shared_.sums[FirstScoreKey() / 16 + i / 2][Head(ScoreHeadTile(), i % 2)] = sum;
    }
    __syncthreads();
  }
  __device__ __forceinline__ float SplitSum(int head) const {
    return (shared_.sums[0][head] + shared_.sums[1][head]) + (shared_.sums[2][head] + shared_.sums[3][head]);
  }

  // Calls visit(tile, half, block, side, column, count) for this thread's pairs of outputs inside the row;
  // `count` (1 or 2) columns of the pair are inside.
  template <class Visit>
  __device__ __forceinline__ void ForEachPair(const Visit& visit) {
#pragma unroll
    for (int i = 0; i < Shape::kHeadTiles * 2; ++i) {
      if (item_.head_tile * Shape::kHeads + Head(i / 2, i % 2) >= p_.op.head_count) continue;
#pragma unroll
      for (int j = 0; j < Shape::kColumnBlocks * 2; ++j) {
        const int count = latent_ - Column(j / 2, j % 2);
        if (count > 0) visit(i / 2, i % 2, j / 2, j % 2, Column(j / 2, j % 2), min(count, 2));
      }
    }
  }

  // Stores the result of a split, or of the merged splits, as number `partial`.
  __device__ __forceinline__ void StorePartial(int32_t partial) {
    const int64_t first_head = static_cast<int64_t>(partial) * Shape::kHeads;
    if (threadIdx.x % kWarpLanes % 4 == 0 && warp_ == 0) {
#pragma unroll
      for (int i = 0; i < Shape::kHeadTiles * 2; ++i) {
        const int head = Head(i / 2, i % 2);
        p_.partial_stats[first_head + head] =
            item_.folds() ? shared_.folded[head] : make_float2(max_[i / 2][i % 2], SplitSum(head));
      }
    }
    ForEachPair([&](int tile, int half, int block, int side, int column, int count) {
      float* out = p_.partials + (first_head + Head(tile, half)) * latent_ + column;
      const float* sums = &out_[tile][block][side][half * 2];
      if (Aligned()) {
        *reinterpret_cast<float2*>(out) = make_float2(sums[0], sums[1]);
      } else {
        out[0] = sums[0];
        if (count > 1) out[1] = sums[1];
      }
    });
  }

  // Merges this split into the previous ones, whose output is in this thread's part of `folds`. The merged
  // output is in out_, and unless this split is the last one, in `folds`.
  __device__ __forceinline__ void FoldSplit(bool first, bool last) {
    float4* running =
        reinterpret_cast<float4*>(p_.folds + static_cast<int64_t>(blockIdx.x) * Shape::kStateFloats);
#pragma unroll
    for (int tile = 0; tile < Shape::kHeadTiles; ++tile) {
      FoldStep step[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float before = first ? max_[tile][half] : shared_.folded[Head(tile, half)].x;
        step[half] = Fold(before, max_[tile][half]);
      }
#pragma unroll
      for (int j = 0; j < Shape::kColumnBlocks * 2; ++j) {
        float(&sums)[4] = out_[tile][j / 2][j % 2];
        float4& stored = running[(tile * Shape::kColumnBlocks * 2 + j) * Shape::kThreads + threadIdx.x];
        if (!first) {
          const float4 before = stored;
          sums[0] = FoldSum(before.x, sums[0], step[0]);
          sums[1] = FoldSum(before.y, sums[1], step[0]);
          sums[2] = FoldSum(before.z, sums[2], step[1]);
          sums[3] = FoldSum(before.w, sums[3], step[1]);
        }
        if (!last) stored = make_float4(sums[0], sums[1], sums[2], sums[3]);
      }
    }
    __syncthreads();  // all threads have read `folded`
    if (warp_ == 0 && lane_ % 4 == 0) {
#pragma unroll
      for (int i = 0; i < Shape::kHeadTiles * 2; ++i) {
        const int head = Head(i / 2, i % 2);
        float2& folded = shared_.folded[head];
        const float sum = SplitSum(head);
        const FoldStep step = Fold(folded.x, max_[i / 2][i % 2]);
        folded = first ? make_float2(max_[i / 2][i % 2], sum)
                       : make_float2(step.max, FoldSum(folded.y, sum, step));
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void StoreOutput() {
    ForEachPair([&](int tile, int half, int block, int side, int column, int count) {
      const int head = Head(tile, half);
      const float factor = 1.0f / (item_.folds() ? shared_.folded[head].y : SplitSum(head));
      bf16* out = p_.op.out.row(item_.row) +
                  static_cast<int64_t>(item_.head_tile * Shape::kHeads + head) * latent_ + column;
      const float* sums = &out_[tile][block][side][half * 2];
      StorePair(out, sums[0] * factor, sums[1] * factor, count, Aligned());
    });
  }

  const DecodePlan& p_;
  const DecodeItem& item_;
  Shared& shared_;
  const int lane_;
  const int warp_;
  const int latent_;
  const int width_;
  const int32_t last_position_;

  const uint8_t* key_rows_[kRounds];                          // of the next tile; null: masked
  float max_[Shape::kHeadTiles][2];                           // of Head(tile, half), in units of log2
  float sum_[kScoreGroups][2];                                // of this thread's weights
  float out_[Shape::kHeadTiles][Shape::kColumnBlocks][2][4];  // two MmaBf16 results each
};

template <class Shape, bool kFp8>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    MlaDecodeItems(const __grid_constant__ DecodePlan p) {
  GridDependencySync();
  auto& shared = SharedStorage<DecodeShared<Shape>>();
  const bool searches = threadIdx.x < kWarpLanes;
  ItemCursor cursor = {};
  if (searches) cursor = StartItems(p);
  while (true) {
    if (searches) {
      const DecodeItem item = NextItem(p, cursor);
      if (threadIdx.x == 0) shared.item = item;
    }
    __syncthreads();
    if (shared.item.row < 0) return;
    ItemAttention<Shape, kFp8>(p, shared).Run();
    __syncthreads();  // all threads have read the item
  }
}

}  // namespace

template <class Shape>
bool DecodeItemsFit() {
  return sizeof(DecodeShared<Shape>) <= SharedMemoryLimit();
}

template bool DecodeItemsFit<R1DecodeShape>();
template bool DecodeItemsFit<WideDecodeShape>();

template <class Shape>
void LaunchDecodeItems(Stream& stream, const DecodePlan& plan, int32_t blocks) {
  const LaunchShape shape = {
      .grid = dim3(blocks), .block = dim3(Shape::kThreads), .shared_bytes = sizeof(DecodeShared<Shape>)};
  Launch(stream, plan.op.layer.fp8() ? MlaDecodeItems<Shape, true> : MlaDecodeItems<Shape, false>, shape,
         plan);
}

template void LaunchDecodeItems<R1DecodeShape>(Stream&, const DecodePlan&, int32_t);
template void LaunchDecodeItems<WideDecodeShape>(Stream&, const DecodePlan&, int32_t);
template void LaunchDecodeItems<SmallDecodeShape>(Stream&, const DecodePlan&, int32_t);
template void LaunchDecodeItems<NarrowDecodeShape>(Stream&, const DecodePlan&, int32_t);

}  // namespace foredraft::cuda
