#pragma once

// A consumer group of mla_decode's kernel for Hopper (mla_decode_hopper.cu): scores, softmax and output of
// its items.

#include "kernels/cuda/attention/mla_decode_combine.h"
#include "kernels/cuda/attention/mla_decode_hopper.h"

namespace foredraft::cuda::hopper_decode {

inline constexpr int kAccumulators = kLatent / 2 / 4;  // per thread and row: 2 in 8 of 256 columns
inline constexpr int kScores = kKeyTile / 2;           // of a thread and tile

// The attention of one item; members are per thread.
template <KeySource source, int kBlocks>
class HopperItem {
 public:
  __device__ __forceinline__ HopperItem(const DecodePlan& p, HopperDecodeShared& shared)
      : p_(p),
        shared_(shared),
        lane_(threadIdx.x % kWarpLanes),
        thread_(threadIdx.x % kGroupThreads),
        group_(__shfl_sync(kAllLanes, threadIdx.x / kGroupThreads, 0)),  // uniform, for the descriptors
        row_(thread_ / kWarpLanes * 16 + lane_ / 4) {}

  // The attention of the next item; false if there is none.
  __device__ __forceinline__ bool Run() {
    // If the query never comes, the producer's next wait ends at its limit.
    MbarrierWaitUnlimited(shared_.query_full, query_parity_);
    const DecodeItem& item = shared_.items[query_parity_];
    if (item.row < 0) return false;
    query_parity_ ^= 1;
    last_place_ = item.last_place;
    for (int32_t i = 0; i < item.split_count; ++i) {
      const bool last = i + 1 == item.split_count;
      const TileRange tiles = SplitTiles(p_.op, item.split_len, item.first_split + i, last_place_);
      Clear();
      if (pipeline_.stage == group_) {
        LeadTiles(tiles, last);
      } else {
        FollowTiles(tiles, last);
      }
      if (item.combines()) CombineSplit(i == 0, last);
      if (!item.begins_row) {
        StorePartial(item, item.partial + i * p_.head_tiles);
      } else if (last && item.partial >= 0) {
        StorePartial(item, item.partial);
      } else if (last) {
        StoreOutput(item);
      }
    }
    return true;
  }

 private:
  // Threads of both blocks store each tile, not TMA.
  static constexpr bool kStoredByBoth = kBlocks > 1 && source == KeySource::kFp8Rows;

  __device__ __forceinline__ int Row(int half) const { return row_ + half * 8; }
  __device__ __forceinline__ bool LeadsRow() const { return lane_ % 4 == 0; }
  // The first of the two columns of out_[4 j .. 4 j + 1] and out_[4 j + 2 .. 4 j + 3].
  __device__ __forceinline__ int Column(int j) const {
    return group_ * (kLatent / 2) + j * 8 + lane_ % 4 * 2;
  }
  __device__ __forceinline__ bool Attended(int32_t place) const {
    return place >= p_.op.first_position && place <= last_place_;
  }
  __device__ __forceinline__ bool AllAttended(int32_t tile) const {
    return Attended(tile * kKeyTile) && Attended(tile * kKeyTile + kKeyTile - 1);
  }
  __device__ __forceinline__ void SyncGroup() { NamedBarrierSync<kGroupThreads>(1 + group_); }
  __device__ __forceinline__ void Clear() {
    max_[0] = max_[1] = kFirstMax;
#pragma unroll
    for (float& sum : out_) sum = 0.0f;
  }

  // ---- the tiles of a split ----
  //
  // A group goes on while P V of a tile is in flight, and releases the tile's stage once P V has ended: only
  // then can the producer load the tile after the next one.

  // Computes a split whose first tile this group scores.
  __device__ __forceinline__ void LeadTiles(const TileRange& tiles, bool last) {
    float scores[kScores];
    StartScores(tiles.begin, pipeline_, scores, [] {});
    int32_t tile = tiles.begin;
    for (; tile + 2 < tiles.end; tile += 2) {
      WarpgroupWaitAll(scores);
      WarpgroupWaitAll(out_);
      Softmax(tile, scores, pipeline_, tile == tiles.begin);
      MultiplyValues();
      FinishValues();
      TakeWeights();
      MultiplyValues();
      Pipeline next = pipeline_;
      next.Next();
      StartScores(tile + 2, next, scores, [&] {
        WarpgroupWait<1>();
        ReleaseKeys(pipeline_.stage);
      });
      pipeline_ = next;
    }
    WarpgroupWaitAll(scores);
    WarpgroupWaitAll(out_);
    if (last) ReleaseStage(shared_.query_empty);
    Softmax(tile, scores, pipeline_, tile == tiles.begin);
    MultiplyValues();
    FinishValues();
    if (tile + 1 == tiles.end) return;
    TakeWeights();
    MultiplyValues();
    FinishValues();
  }

  // Computes a split whose first tile the other group scores. This group's next scores go first: P V of the
  // other's tile then runs beside their softmax.
  __device__ __forceinline__ void FollowTiles(const TileRange& tiles, bool last) {
    float scores[kScores];
    int32_t tile = tiles.begin;
    if (last && tile + 1 == tiles.end) ReleaseStage(shared_.query_empty);
    for (; tile + 1 < tiles.end; tile += 2) {
      Pipeline next = pipeline_;
      next.Next();
      StartScores(tile + 1, next, scores, [] {});
      WarpgroupWaitAll(scores);
      TakeWeights();
      MultiplyValues();
      if (last && tile + 3 >= tiles.end) ReleaseStage(shared_.query_empty);
      Softmax(tile + 1, scores, next, false);
      FinishValues();
      MultiplyValues();
      FinishValues();
    }
    if (tile == tiles.end) return;
    TakeWeights();
    MultiplyValues();
    FinishValues();
  }

  // Zeroes the keys of places that are not attended: their cache rows are undefined, and TMA leaves stale
  // rows past the last page. A weight of 0 would not mask them: 0 * NaN is NaN.
  __device__ __forceinline__ void ClearMasked(Chunk (&keys)[kChunks], int32_t first_place) {
    constexpr int kVectors = kTileRowBytes / 16;
    for (int i = thread_; i < kKeyTile * kChunks * kVectors; i += kGroupThreads) {
      const int key = i / (kChunks * kVectors), vector = i % (kChunks * kVectors);
      if (Attended(first_place + key)) continue;
      reinterpret_cast<uint4*>(keys[vector / kVectors].elements + key * kChunkColumns)[vector % kVectors] =
          make_uint4(0, 0, 0, 0);
    }
    FenceProxyAsync();
    SyncGroup();
  }

  // first_started() is called once the products of the first load are committed as a wgmma group of their
  // own.
  template <class FirstStarted>
  __device__ __forceinline__ void StartScores(int32_t tile, const Pipeline& pipeline,
                                              float (&scores)[kScores], const FirstStarted& first_started) {
    Chunk(&keys)[kChunks] = shared_.keys[pipeline.stage];
    Mbarrier(&full)[kLoads] = shared_.full[pipeline.stage];
    MbarrierWait(full[0], pipeline.parity, "mla keys full");
    if (kStoredByBoth || !AllAttended(tile)) {
      for (Mbarrier& load : full) MbarrierWaitUnlimited(load, pipeline.parity);
    }
    if constexpr (kStoredByBoth) {
      // Covers the other block's stores, for which that block's own fence does not suffice.
      FenceProxyAsync();
    }
    if (!AllAttended(tile)) ClearMasked(keys, tile * kKeyTile);
    uint64_t a = KMajorDescriptor(shared_.query);
    uint64_t b = KMajorDescriptor(keys);
    constexpr uint64_t kNextChunk = sizeof(Chunk) >> 4;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk == kLoadChunks) {
        WarpgroupCommitBatch();
        first_started();
      }
      if (chunk % kLoadChunks == 0) {
        if (chunk > 0) MbarrierWaitUnlimited(full[chunk / kLoadChunks], pipeline.parity);
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

  // Online softmax: computes the running maximum and sums after this tile, keep_, and the tile's weights, for
  // both groups.
  __device__ __forceinline__ void Softmax(int32_t tile, float (&scores)[kScores], const Pipeline& pipeline,
                                          bool first) {
    Mask(tile, scores);
    float largest[2] = {kMaskedScore, kMaskedScore};
#pragma unroll
    for (int i = 0; i < kScores; ++i) largest[i % 4 / 2] = fmaxf(largest[i % 4 / 2], scores[i]);
    RaiseMax(fmaxf(max_[0], QuadMax(largest[0]) * p_.score_scale),
             fmaxf(max_[1], QuadMax(largest[1]) * p_.score_scale));
    SyncGroup();  // no warp's products read the RoPE chunk any more
    Chunk& weights = shared_.weights(pipeline.stage);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float4 before = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (!first) before = shared_.sums[1 - pipeline.stage][half][thread_];
      float sums[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
      for (int keys = 0; keys < kKeyTile / 16; ++keys) {
        float pairs[2];
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const int j = keys * 2 + side;
          const float w0 = exp2f(fmaf(scores[4 * j + 2 * half], p_.score_scale, -max_[half]));
          const float w1 = exp2f(fmaf(scores[4 * j + 2 * half + 1], p_.score_scale, -max_[half]));
          *reinterpret_cast<uint32_t*>(weights.At(Row(half), j * 8 + lane_ % 4 * 2)) = PackBf16(w0, w1);
          pairs[side] = w0 + w1;
        }
        sums[keys] = fmaf(sums[keys], keep_[half], pairs[0] + pairs[1]);
      }
      shared_.sums[pipeline.stage][half][thread_] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
    shared_.max[thread_] = make_float2(max_[0], max_[1]);
    FenceProxyAsync();
    __syncwarp();
    if (lane_ == 0) MbarrierArrive(shared_.weights_ready[pipeline.stage]);
  }

  __device__ __forceinline__ void Mask(int32_t tile, float (&scores)[kScores]) const {
    if (AllAttended(tile)) return;  // most tiles
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (!Attended(tile * kKeyTile + i / 4 * 8 + lane_ % 4 * 2 + i % 2)) scores[i] = kMaskedScore;
    }
  }

  __device__ __forceinline__ void RaiseMax(float of_first, float of_second) {
    keep_[0] = exp2f(max_[0] - of_first);
    keep_[1] = exp2f(max_[1] - of_second);
    max_[0] = of_first;
    max_[1] = of_second;
  }

  // Waits for the weights of the tile at pipeline_, which the other group computes.
  __device__ __forceinline__ void TakeWeights() {
    MbarrierWaitUnlimited(shared_.weights_ready[pipeline_.stage], pipeline_.parity);
    // The other group has waited for all loads; this one waits for those that its products read, too.
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if (!ReadsLoad(group_, load)) continue;
      MbarrierWaitUnlimited(shared_.full[pipeline_.stage][load], pipeline_.parity);
    }
    const float2 max = shared_.max[thread_];
    RaiseMax(max.x, max.y);
  }

  // Rescales the running outputs and starts P V of the tile at pipeline_.
  __device__ __forceinline__ void MultiplyValues() {
    MbarrierWaitUnlimited(shared_.weights_ready[pipeline_.stage], pipeline_.parity);
    // Most tiles leave the maximum unchanged: skip the multiplication by 1.
    if (__any_sync(kAllLanes, keep_[0] != 1.0f || keep_[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < 2 * kAccumulators; ++i) out_[i] *= keep_[i / 2 % 2];
    }
    const uint64_t a = KMajorDescriptor(&shared_.weights(pipeline_.stage));
    const uint64_t b =
        MnMajorDescriptor(&shared_.keys[pipeline_.stage][group_ * kValueChunks], sizeof(Chunk));
    WarpgroupArrive();
#pragma unroll
    for (int i = 0; i < kKeyTile / 16; ++i) {
      WgmmaBf16MnMajorB(out_, a + i * kDescriptor32Bytes, b + i * kDescriptor16Rows, true);
    }
    WarpgroupCommitBatch();
  }

  __device__ __forceinline__ void FinishValues() {
    WarpgroupWaitAll(out_);
    ReleaseKeys(pipeline_.stage);
    pipeline_.Next();
  }

  // Called once this warp has read all it needs of a tile: P V reads last, because a tile's weights come
  // after its scores.
  __device__ __forceinline__ void ReleaseKeys(int stage) {
    __syncwarp();
    if (lane_ >= (kStoredByBoth ? kBlocks : 1)) return;
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if (!ReadsLoad(group_, load)) continue;
      Mbarrier& empty = shared_.empty[stage][load];
      if constexpr (kBlocks == 1) {
        MbarrierArrive(empty);
      } else {
        MbarrierArriveAt(empty, kStoredByBoth ? lane_ : BringerOf(stage, load, kBlocks));
      }
    }
  }

  // ---- the result of a split ----

  // The sum of weights after the split's last tile, whose stage is the one before pipeline_'s.
  __device__ __forceinline__ float SplitSum(int half) const {
    const float4 sums = shared_.sums[1 - pipeline_.stage][half][thread_];
    return (QuadSum(sums.x) + QuadSum(sums.y)) + (QuadSum(sums.z) + QuadSum(sums.w));
  }
  // Max and sum of the splits so far.
  __device__ __forceinline__ float2& Combined(int half) { return shared_.combined[group_][Row(half)]; }

  // Stores the result of a split, or of the merged splits, as number `partial`.
  __device__ __forceinline__ void StorePartial(const DecodeItem& item, int32_t partial) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t head = static_cast<int64_t>(partial) * kHeads + Row(half);
      const float2 stats = item.combines() ? Combined(half) : make_float2(max_[half], SplitSum(half));
      if (group_ == 0 && LeadsRow()) p_.partial_stats[head] = stats;
#pragma unroll
      for (int j = 0; j < kAccumulators / 2; ++j) {
        *reinterpret_cast<float2*>(p_.partials + head * kLatent + Column(j)) =
            make_float2(out_[4 * j + 2 * half], out_[4 * j + 2 * half + 1]);
      }
    }
  }

  // Merges this split into the previous ones, whose output is in this thread's part of
  // `running_outputs`. The merged output is in out_, and unless this split is the last one, also in
  // `running_outputs`.
  __device__ __forceinline__ void CombineSplit(bool first, bool last) {
    float4* const running =
        reinterpret_cast<float4*>(p_.running_outputs + static_cast<int64_t>(blockIdx.x) * kHeads * kLatent) +
        threadIdx.x;
    CombineStep step[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      step[half] = CombineMax(first ? max_[half] : Combined(half).x, max_[half]);
      __syncwarp();
      if (LeadsRow()) Combined(half).x = step[half].max;
    }
    if (!first) {
      CombineOutputs<kAccumulators / 2, kConsumerThreads>(running, step,
                                                          [this](int j) { return &out_[4 * j]; });
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = SplitSum(half);  // by all lanes
      float& combined = Combined(half).y;
      if (LeadsRow()) combined = first ? sum : CombineSum(combined, sum, step[half]);
    }
    if (!last) {
#pragma unroll
      for (int j = 0; j < kAccumulators / 2; ++j) {
        const float* const sums = &out_[4 * j];
        running[j * kConsumerThreads] = make_float4(sums[0], sums[1], sums[2], sums[3]);
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void StoreOutput(const DecodeItem& item) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = 1.0f / (item.combines() ? Combined(half).y : SplitSum(half));
      const int head = item.head_tile * kHeads + Row(half);
      if (head >= p_.op.head_count) continue;
      bf16* const out = p_.op.out.row(item.row) + static_cast<int64_t>(head) * kLatent;
#pragma unroll
      for (int j = 0; j < kAccumulators / 2; ++j) {
        const float* const sums = &out_[4 * j + 2 * half];
        StorePair(out + Column(j), sums[0] * factor, sums[1] * factor, 2, true);
      }
    }
  }

  const DecodePlan& p_;
  HopperDecodeShared& shared_;
  const int lane_;
  const int thread_;  // of the group
  const int group_;
  const int row_;  // the first of this thread's two heads
  Pipeline pipeline_;
  uint32_t query_parity_ = 0;
  int32_t last_place_ = 0;  // of the item's row

  float max_[2];   // of Row(half), in units of log2
  float keep_[2];  // factor of the outputs, from the maximum before the last tile
  float out_[2 * kAccumulators];
};

}  // namespace foredraft::cuda::hopper_decode
