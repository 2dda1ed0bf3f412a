// mla_decode_items.cu for Hopper: wgmma over tiles of 64 keys, warp-specialised.
//
// Two consumer warpgroups, and a producer: of BF16 rows one warp, which loads them by TMA; of FP8 rows a
// whole warpgroup, which decodes them into the same tiles (mla_decode_producer.h). Consumer group w computes
// the scores of keys [32 w, 32 w + 32) of a tile for 64 heads, and 256 of the 512 latent columns of the
// output. The groups exchange maxima and weights through shared memory. A thread has rows (heads) 16 (warp %
// 4) + lane / 4 and that + 8.
//
// Every score and every output is the same chain of k16 products as in mla_decode_items.cu; all other
// arithmetic is the same, in the same order.

#include <algorithm>

#include "kernels/cuda/attention/mla_decode_fold.h"
#include "kernels/cuda/attention/mla_decode_producer.h"

namespace foredraft::cuda {
namespace hopper_decode {
namespace {

constexpr int kSums = kLatent / 2 / 4;  // of a thread and row: 2 in each 8 of the group's 256 columns
constexpr int kConsumersBarrier = 1;

// ---- the consumers ----

__device__ __forceinline__ void SyncConsumers() { NamedBarrierSync<kConsumersBarrier, kConsumerThreads>(); }

// The attention of one item; members are per thread.
template <bool kFp8>
class HopperItem {
 public:
  __device__ __forceinline__ HopperItem(const DecodePlan& p, HopperDecodeShared& shared)
      : p_(p),
        shared_(shared),
        lane_(threadIdx.x % kWarpLanes),
        group_(__shfl_sync(kAllLanes, threadIdx.x / kGroupThreads, 0)),  // uniform, for the descriptors
        row_(threadIdx.x % kGroupThreads / kWarpLanes * 16 + lane_ / 4) {}

  // The attention of the next item; false if there is none.
  __device__ __forceinline__ bool Run() {
    // If the query never comes, the producer's next wait ends at its limit.
    MbarrierWaitUnlimited(shared_.query_full, query_parity_);
    const DecodeItem& item = shared_.items[query_parity_];
    if (item.row < 0) return false;
    query_parity_ ^= 1;
    last_position_ = p_.op.index.positions[item.row];
    for (int32_t i = 0; i < item.split_count; ++i) {
      const bool last = i + 1 == item.split_count;
      Clear();
      AttendTiles(SplitTiles(p_.op, item.split_len, item.first_split + i, last_position_), last);
      ShareSums();
      if (item.folds()) FoldSplit(i == 0, last);
      if (!item.begins_row) {
        StorePartial(item, item.partial + i * p_.head_tiles);
      } else if (last && item.partial >= 0) {
        StorePartial(item, item.partial);
      } else if (last) {
        StoreOutput(item);
      }
      SyncConsumers();  // `sums` has been read
    }
    return true;
  }

 private:
  static constexpr int kLoadChunks = kFp8 ? 1 : kTmaChunks;  // that arrive together

  __device__ __forceinline__ int Row(int half) const { return row_ + half * 8; }
  __device__ __forceinline__ bool LeadsRow() const { return lane_ % 4 == 0; }
  // The first of the two columns of out_[4 j .. 4 j + 1] and out_[4 j + 2 .. 4 j + 3].
  __device__ __forceinline__ int Column(int j) const {
    return group_ * (kLatent / 2) + j * 8 + lane_ % 4 * 2;
  }
  __device__ __forceinline__ bool Attended(int32_t position) const {
    return position >= p_.op.first_position && position <= last_position_;
  }
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max_[half] = kFirstMax;
      sum_[0][half] = sum_[1][half] = 0.0f;
    }
#pragma unroll
    for (float& sum : out_) sum = 0.0f;
  }

  // Issues a tile's Q K^T directly after the previous tile's P V, so that the tensor cores stay busy while
  // the consumers wait for P V. Its stage is free before most of Q K^T has run.
  __device__ __forceinline__ void AttendTiles(const TileRange& tiles, bool last) {
    float scores[16];
    StartScores(tiles.begin, pipeline_, scores, [] {});
    WarpgroupWaitAll(scores);
    for (int32_t tile = tiles.begin; tile + 1 < tiles.end; ++tile) {
      ShareWeights(tile, scores);
      StartValues();
      Pipeline next = pipeline_;
      next.Next();
      StartScores(tile + 1, next, scores, [&] {
        WarpgroupWait<1>();
        ReleaseStage(shared_.empty[pipeline_.stage]);
      });
      pipeline_ = next;
      WarpgroupWaitAll(scores);
      WarpgroupWaitAll(out_);
    }
    if (last) ReleaseStage(shared_.query_empty);
    ShareWeights(tiles.end - 1, scores);
    StartValues();
    WarpgroupWaitAll(out_);
    ReleaseStage(shared_.empty[pipeline_.stage]);
    pipeline_.Next();
  }

  // Zeroes the keys of positions that are not attended: their cache rows are undefined, and TMA leaves stale
  // rows past the last page. A weight of 0 would not mask them: 0 * NaN is NaN.
  __device__ __forceinline__ void ClearMasked(Chunk (&keys)[kChunks], int32_t first_position) {
    constexpr int kVectors = kTileRowBytes / 16;
    for (int i = threadIdx.x; i < kKeyTile * kChunks * kVectors; i += kConsumerThreads) {
      const int key = i / (kChunks * kVectors), vector = i % (kChunks * kVectors);
      if (Attended(first_position + key)) continue;
      reinterpret_cast<uint4*>(keys[vector / kVectors].elements + key * kChunkColumns)[vector % kVectors] =
          make_uint4(0, 0, 0, 0);
    }
    FenceProxyAsync();
    SyncConsumers();
  }

  // first_started(): called once the products of the first load are a group of their own.
  template <class FirstStarted>
  __device__ __forceinline__ void StartScores(int32_t tile, const Pipeline& pipeline, float (&scores)[16],
                                              const FirstStarted& first_started) {
    Chunk(&keys)[kChunks] = shared_.keys[pipeline.stage];
    const int32_t first_position = tile * kKeyTile;
    Mbarrier(&full)[kChunks] = shared_.full[pipeline.stage];
    MbarrierWait(full[0], pipeline.parity, "mla keys full");
    if (!Attended(first_position) || !Attended(first_position + kKeyTile - 1)) {
      for (int i = 0; i < kChunks; i += kLoadChunks) MbarrierWaitUnlimited(full[i], pipeline.parity);
      ClearMasked(keys, first_position);
    }
    uint64_t a = KMajorDescriptor(shared_.query);
    uint64_t b = KMajorDescriptor(keys[0].elements + group_ * 32 * kChunkColumns);
    constexpr uint64_t kNextChunk = sizeof(Chunk) >> 4;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk == kLoadChunks) {
        WarpgroupCommitBatch();
        first_started();
      }
      if (chunk % kLoadChunks == 0) {
        if (chunk > 0) MbarrierWaitUnlimited(full[chunk], pipeline.parity);
        WarpgroupArrive();
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        WgmmaBf16(scores, a + i * kDescriptor32Bytes, b + i * kDescriptor32Bytes, chunk > 0 || i > 0);
      }
      a = Opaque(a + kNextChunk);
      b = Opaque(b + kNextChunk);
    }
    WarpgroupCommitBatch();
  }

  __device__ __forceinline__ void ShareWeights(int32_t tile, float (&scores)[16]) {
    ShareMax(tile * kKeyTile + group_ * 32, scores);
    SyncConsumers();
    Weigh(scores);
    FenceProxyAsync();
    SyncConsumers();
  }

  // Masks the scores, which start at `first_position`, and shares the maxima of this group's keys.
  __device__ __forceinline__ void ShareMax(int32_t first_position, float (&scores)[16]) {
    // Most tiles have none to mask.
    if (!Attended(first_position) || !Attended(first_position + 31)) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (!Attended(first_position + i / 4 * 8 + lane_ % 4 * 2 + i % 2)) scores[i] = kMaskedScore;
      }
    }
    float largest[2] = {kMaskedScore, kMaskedScore};
#pragma unroll
    for (int i = 0; i < 16; ++i) largest[i % 4 / 2] = fmaxf(largest[i % 4 / 2], scores[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float row_max = QuadMax(largest[half]);
      if (LeadsRow()) shared_.tile_max[group_][Row(half)] = row_max;
    }
  }

  // Online softmax: updates the running maximum, rescales the running sums and outputs, and shares this
  // group's weights.
  __device__ __forceinline__ void Weigh(const float (&scores)[16]) {
    float keep[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float tile_max = fmaxf(shared_.tile_max[0][Row(half)], shared_.tile_max[1][Row(half)]);
      const float next = fmaxf(max_[half], tile_max * p_.score_scale);
      keep[half] = exp2f(max_[half] - next);
      max_[half] = next;
#pragma unroll
      for (int keys = 0; keys < 2; ++keys) {
        float pairs[2];
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const int j = keys * 2 + side;
          const float w0 = exp2f(fmaf(scores[4 * j + 2 * half], p_.score_scale, -next));
          const float w1 = exp2f(fmaf(scores[4 * j + 2 * half + 1], p_.score_scale, -next));
          *reinterpret_cast<uint32_t*>(shared_.weights.At(Row(half), group_ * 32 + j * 8 + lane_ % 4 * 2)) =
              PackBf16(w0, w1);
          pairs[side] = w0 + w1;
        }
        sum_[keys][half] = fmaf(sum_[keys][half], keep[half], pairs[0] + pairs[1]);
      }
    }
    // Most tiles leave the maximum unchanged: skip the multiplication by 1.
    if (__any_sync(kAllLanes, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < 2 * kSums; ++i) out_[i] *= keep[i / 2 % 2];
    }
  }

  __device__ __forceinline__ void StartValues() {
    const uint64_t a = KMajorDescriptor(&shared_.weights);
    const uint64_t b =
        MnMajorDescriptor(&shared_.keys[pipeline_.stage][group_ * kValueChunks], sizeof(Chunk));
    WarpgroupArrive();
#pragma unroll
    for (int i = 0; i < kKeyTile / 16; ++i) {
      WgmmaBf16MnMajorB(out_, a + i * kDescriptor32Bytes, b + i * kDescriptor16Rows, true);
    }
    WarpgroupCommitBatch();
  }

  __device__ __forceinline__ void ShareSums() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float sum = QuadSum(sum_[i / 2][i % 2]);
      if (LeadsRow()) shared_.sums[group_ * 2 + i / 2][Row(i % 2)] = sum;
    }
    SyncConsumers();
  }
  __device__ __forceinline__ float SplitSum(int row) const {
    return (shared_.sums[0][row] + shared_.sums[1][row]) + (shared_.sums[2][row] + shared_.sums[3][row]);
  }

  // Stores the result of a split, or of the merged splits, as number `partial`.
  __device__ __forceinline__ void StorePartial(const DecodeItem& item, int32_t partial) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t head = static_cast<int64_t>(partial) * kHeads + Row(half);
      if (group_ == 0 && LeadsRow()) {
        p_.partial_stats[head] =
            item.folds() ? shared_.folded[Row(half)] : make_float2(max_[half], SplitSum(Row(half)));
      }
#pragma unroll
      for (int j = 0; j < kSums / 2; ++j) {
        *reinterpret_cast<float2*>(p_.partials + head * kLatent + Column(j)) =
            make_float2(out_[4 * j + 2 * half], out_[4 * j + 2 * half + 1]);
      }
    }
  }

  // Merges this split into the previous ones, whose output is in this thread's part of `folds`. The merged
  // output is in out_, and unless this split is the last one, in `folds`.
  __device__ __forceinline__ void FoldSplit(bool first, bool last) {
    float4* const running =
        reinterpret_cast<float4*>(p_.folds + static_cast<int64_t>(blockIdx.x) * kHeads * kLatent) +
        threadIdx.x;
    FoldStep step[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      step[half] = Fold(first ? max_[half] : shared_.folded[Row(half)].x, max_[half]);
    }
    if (!first) {
      FoldOutputs<kSums / 2, kConsumerThreads>(running, step, [this](int j) { return &out_[4 * j]; });
    }
    if (!last) {
#pragma unroll
      for (int j = 0; j < kSums / 2; ++j) {
        const float* const sums = &out_[4 * j];
        running[j * kConsumerThreads] = make_float4(sums[0], sums[1], sums[2], sums[3]);
      }
    }
    SyncConsumers();  // all threads have read `folded`
    if (group_ == 0 && LeadsRow()) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2& folded = shared_.folded[Row(half)];
        const float sum = SplitSum(Row(half));
        folded = first ? make_float2(max_[half], sum)
                       : make_float2(step[half].max, FoldSum(folded.y, sum, step[half]));
      }
    }
    SyncConsumers();
  }

  __device__ __forceinline__ void StoreOutput(const DecodeItem& item) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Row(half);
      if (item.head_tile * kHeads + row >= p_.op.head_count) continue;
      const float factor = 1.0f / (item.folds() ? shared_.folded[row].y : SplitSum(row));
      bf16* out = p_.op.out.row(item.row) + static_cast<int64_t>(item.head_tile * kHeads + row) * kLatent;
#pragma unroll
      for (int j = 0; j < kSums / 2; ++j) {
        const float* sums = &out_[4 * j + 2 * half];
        StorePair(out + Column(j), sums[0] * factor, sums[1] * factor, 2, true);
      }
    }
  }

  const DecodePlan& p_;
  HopperDecodeShared& shared_;
  const int lane_;
  const int group_;
  const int row_;  // the first of this thread's two heads
  Pipeline pipeline_;
  uint32_t query_parity_ = 0;
  int32_t last_position_ = 0;  // of the item's row

  float max_[2];     // of Row(half), in units of log2
  float sum_[2][2];  // of this thread's weights: per 16 of the group's keys, and row
  float out_[2 * kSums];
};

template <bool kFp8>
__global__ void __launch_bounds__(kThreads, 1) MlaDecodeHopper(const __grid_constant__ HopperDecodePlan p) {
  auto& shared = SharedStorage<HopperDecodeShared>();
  if (threadIdx.x == 0) {
    PrefetchTensorMap(p.q_lat);
    PrefetchTensorMap(p.q);
    if (!kFp8) PrefetchTensorMap(p.cache);
    MbarrierInit(shared.query_full, 1);
    MbarrierInit(shared.query_empty, kConsumerWarps);
    for (int stage = 0; stage < kStages; ++stage) {
      for (Mbarrier& full : shared.full[stage]) MbarrierInit(full, kFp8 ? kProducerWarps : 1);
      MbarrierInit(shared.empty[stage], kConsumerWarps);
    }
    FenceMbarrierInit();
  }
  __syncthreads();
  GridDependencySync();
  if (threadIdx.x >= kConsumerThreads) {
    WarpgroupRegDealloc<kFp8 ? 72 : 56>();
    if (kFp8 || threadIdx.x < kConsumerThreads + kWarpLanes) Produce<kFp8>(p, shared);
  } else {
    WarpgroupRegAlloc<kFp8 ? 216 : 224>();
    HopperItem<kFp8> attention(p.plan, shared);
    while (attention.Run()) {
    }
  }
}

TensorMap QueryMap(Matrix<const bf16> rows, int32_t head_count, int32_t head_width) {
  return EncodeTensorMap({.data = rows.data,
                          .element_bytes = sizeof(bf16),
                          .extent = {static_cast<uint64_t>(head_width), static_cast<uint64_t>(head_count),
                                     static_cast<uint64_t>(rows.rows)},
                          .pitch = {head_width * sizeof(bf16), rows.stride * sizeof(bf16)},
                          .box = {kChunkColumns, kHeads, 1},
                          .swizzled = true});
}

// The chunks of a row as a dimension of their own: a box has several of them.
TensorMap CacheMap(const KvLayer& layer, const HopperDecodePlan& p) {
  const uint64_t row_bytes = layer.row_width() * sizeof(bf16);
  const uint64_t rows = static_cast<uint64_t>(layer.block_count) * layer.tokens_per_block;
  return EncodeTensorMap(
      {.data = layer.data,
       .element_bytes = sizeof(bf16),
       .extent = {kChunkColumns, rows, kChunks},
       .pitch = {row_bytes, kTileRowBytes},
       .box = {kChunkColumns, static_cast<uint32_t>(p.page_rows), static_cast<uint32_t>(p.box_chunks())},
       .swizzled = true});
}

}  // namespace
}  // namespace hopper_decode

bool HopperSupportsDecode(const KvLayer& layer) {
  const int32_t page = layer.tokens_per_block;
  // TMA loads whole pages, and the swizzle pattern repeats every 8 rows.
  return RunsHopperKernels() &&
         (layer.fp8() || page % kKeyTile == 0 || (page % 8 == 0 && kKeyTile % page == 0));
}

void LaunchDecodeHopper(Stream& stream, const DecodePlan& plan, int32_t blocks) {
  using namespace hopper_decode;
  const MlaDecodeParams& op = plan.op;
  HopperDecodePlan p = {.plan = plan,
                        .q_lat = QueryMap(op.q_lat, op.head_count, kLatent),
                        .q = QueryMap(op.q, op.head_count, op.head_dim),
                        .cache = {},
                        .page_rows = std::min(op.layer.tokens_per_block, kKeyTile)};
  if (!op.layer.fp8()) p.cache = CacheMap(op.layer, p);
  const LaunchShape shape = {
      .grid = dim3(blocks), .block = dim3(kThreads), .shared_bytes = sizeof(HopperDecodeShared)};
  Launch(stream, op.layer.fp8() ? MlaDecodeHopper<true> : MlaDecodeHopper<false>, shape, p);
}

}  // namespace foredraft::cuda
