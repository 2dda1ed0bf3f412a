#pragma once

// A consumer group of mla_decode's kernel for Hopper with FP8 products (mla_decode_fp8.cu): rounds queries,
// and computes scores and weights of tiles.

#include <cuda_fp8.h>

#include "kernels/cuda/attention/mla_decode_fp8_values.h"
#include "kernels/cuda/attention/mla_decode_search.h"
#include "kernels/cuda/common/ptx_bf16x2.h"

namespace foredraft::cuda::fp8_decode {

inline constexpr int kScores = kKeyTile / 2;  // of a thread and tile, as a wgmma lays them out

// Two numbers as codes, the first in the low byte: rounded to nearest, ties to even; NaN stays.
__device__ __forceinline__ uint32_t CodePair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// The attention of one item; members are per thread.
template <int kBlocks>
class Fp8Item {
 public:
  __device__ __forceinline__ Fp8Item(const DecodePlan& p, Fp8DecodeShared& shared)
      : p_(p),
        shared_(shared),
        lane_(threadIdx.x % kWarpLanes),
        thread_(threadIdx.x % kGroupThreads),
        group_(__shfl_sync(kAllLanes, threadIdx.x / kGroupThreads, 0)),  // uniform, for the descriptors
        outputs_(p, shared, group_) {}

  // The attention of the next item; false if there is none.
  __device__ __forceinline__ bool Run() {
    // If the item never comes, the producer's next wait ends at its limit.
    MbarrierWaitUnlimited(shared_.item_full, item_parity_);
    const DecodeItem& item = shared_.items[item_parity_];
    if (item.row < 0) return false;
    item_parity_ ^= 1;
    ReleaseStage(shared_.item_empty);  // of the item before: all of its warps are here
    RoundQuery(item);
    for (int32_t i = 0; i < item.split_count; ++i) {
      const bool last = i + 1 == item.split_count;
      outputs_.Clear();
      AttendTiles(SplitTiles(p_.op, item.split_len, item.first_split + i, item.last_place));
      const int last_group = 1 - added_ % 2;
      if (item.combines()) outputs_.CombineSplit(last_group, i == 0, last);
      if (!item.begins_row) {
        outputs_.StorePartial(last_group, item.combines(), item.partial + i * p_.head_tiles);
      } else if (last && item.partial >= 0) {
        outputs_.StorePartial(last_group, item.combines(), item.partial);
      } else if (last) {
        outputs_.StoreOutput(last_group, item);
      }
    }
    return true;
  }

 private:
  __device__ __forceinline__ bool Attended(int32_t place) const {
    // Reads shared memory each time, which saves a register from tile to tile.
    return place >= p_.op.first_position && place <= shared_.items[item_parity_ ^ 1].last_place;
  }
  __device__ __forceinline__ bool AllAttended(int32_t tile) const {
    return Attended(tile * kKeyTile) && Attended(tile * kKeyTile + kKeyTile - 1);
  }
  __device__ __forceinline__ void SyncGroup() { NamedBarrierSync<kGroupThreads>(1 + group_); }
  __device__ __forceinline__ void SyncConsumers() { NamedBarrierSync<kConsumerThreads>(3); }

  // ---- the query ----

  // Rounds the latents of the item's heads like a row of the cache. A thread has a group of columns of a
  // head, and a part of a head's RoPE columns. Heads past the last one are zeros.
  __device__ __forceinline__ void RoundQuery(const DecodeItem& item) {
    const int row = threadIdx.x / kScaleGroups, part = threadIdx.x % kScaleGroups;
    static_assert(kConsumerThreads == kHeads * kScaleGroups);
    const int64_t head = item.head_tile * kHeads + row;
    const bool present = head < p_.op.head_count;
    constexpr int kVectors = KvRowLayout::kLatentGroup / 8;
    uint4 latent[kVectors], rope[2];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const auto* const from = reinterpret_cast<const uint4*>(p_.op.q_lat.row(item.row) + head * kLatent +
                                                              part * KvRowLayout::kLatentGroup);
      latent[i] = present ? from[i] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto* const from = reinterpret_cast<const uint4*>(p_.op.q.row(item.row) +
                                                              (head + 1) * p_.op.head_dim - 64 + part * 16);
      rope[i] = present ? from[i] : make_uint4(0, 0, 0, 0);
    }
    const float scale = KvCodes<DType::kF8E4M3>::Scale(Largest(latent));
    SyncConsumers();  // no product reads the previous query any more
    shared_.query_scales[part][row] = scale;
    const float inverse = 1.0f / scale;
#pragma unroll
    for (int i = 0; i < kVectors; i += 2) {
      *reinterpret_cast<uint4*>(shared_.query[part].At(row, i * 8)) = make_uint4(
          Codes(latent[i].x, latent[i].y, inverse), Codes(latent[i].z, latent[i].w, inverse),
          Codes(latent[i + 1].x, latent[i + 1].y, inverse), Codes(latent[i + 1].z, latent[i + 1].w, inverse));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<uint4*>(shared_.query_rope.At(row, part * 16 + i * 8)) = rope[i];
    }
    FenceProxyAsync();
    SyncConsumers();
  }

  // The largest KvMagnitude.
  template <int kCount>
  static __device__ __forceinline__ uint32_t Largest(const uint4 (&vectors)[kCount]) {
    uint32_t largest = 0;
#pragma unroll
    for (const uint4& vector : vectors) {
      const uint32_t pairs[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
      for (const uint32_t pair : pairs) largest = max(largest, max(pair & 0x7fffu, pair >> 16 & 0x7fffu));
    }
    return largest;
  }
  // Four BF16 values times `inverse`, as codes.
  static __device__ __forceinline__ uint32_t Codes(uint32_t first, uint32_t second, float inverse) {
    const auto pair = [&](uint32_t x) {
      return CodePair(__uint_as_float(x << 16) * inverse, __uint_as_float(x & 0xffff0000u) * inverse);
    };
    return pair(first) | pair(second) << 16;
  }

  // ---- the tiles of a split ----
  //
  // The groups take turns in scores and softmax of tiles. A group does the softmax of its own tile before it
  // adds the previous tile, which is the other group's. So it waits only for the other's maxima, and its P V
  // of two tiles runs beside the other's scores, which take as long.

  __device__ __forceinline__ void AttendTiles(const TileRange& tiles) {
    int32_t tile = tiles.begin + (TakesNextTile() ? 0 : 1);
    for (; tile < tiles.end; tile += 2) {
      const bool first = tile == tiles.begin;
      const Pipeline own = PipelineOf(added_ + (first ? 0 : 1));
      float scores[kScores];
      Score(tile, own, scores);
      Softmax(tile, own, first, scores);
#pragma unroll 1
      for (int i = first ? 1 : 0; i < 2; ++i) AddTile();
    }
    if (tile == tiles.end) AddTile();
  }
  __device__ __forceinline__ void AddTile() {
    outputs_.Add(PipelineOf(added_));
    added_ = added_ + 1 < kPeriod ? added_ + 1 : 0;
  }

  // The groups alternate between tiles, and tiles go through the stages: both follow from the number of tiles
  // before, modulo two visits of each stage.
  static constexpr int kPeriod = 2 * kStages;
  static __device__ __forceinline__ Pipeline PipelineOf(int tiles) {
    const int tile = tiles < kPeriod ? tiles : tiles - kPeriod;
    return tile < kStages ? Pipeline{tile, 0} : Pipeline{tile - kStages, 1};
  }
  // Called between two splits: whether the second one's first tile is this group's.
  __device__ __forceinline__ bool TakesNextTile() const { return added_ % 2 == group_; }

  // Zeroes the keys of places that are not attended: their cache rows are undefined, and TMA leaves stale
  // rows past the last page. A code of 0 as weight would not mask them: 0 * NaN is NaN.
  __device__ __forceinline__ void ClearMasked(int stage, int32_t first_place) {
    constexpr int kVectors = kTileRowBytes / 16;
    for (int i = thread_; i < kKeyTile * kVectors; i += kGroupThreads) {
      const int key = i / kVectors, at = i % kVectors * 16;
      if (Attended(first_place + key)) continue;
      const uint4 zeros = make_uint4(0, 0, 0, 0);
      for (CodeTile& keys : shared_.keys[stage]) *reinterpret_cast<uint4*>(keys.At(key, at)) = zeros;
      *reinterpret_cast<uint4*>(shared_.rope[stage].At(key, at / 2)) = zeros;
    }
    FenceProxyAsync();
    SyncGroup();
  }

  // Scores a tile, one group of columns at a time: each group has a sum from zero, and its own scales.
  __device__ __forceinline__ void Score(int32_t tile, const Pipeline& at, float (&scores)[kScores]) {
    const int stage = at.stage;
    MbarrierWait(shared_.full[stage][0], at.parity, "mla keys full");
    if (!AllAttended(tile)) {
      MbarrierWaitUnlimited(shared_.full[stage][1], at.parity);
      ClearMasked(stage, tile * kKeyTile);
    }
    MbarrierWaitUnlimited(shared_.scaled[stage], at.parity);
    uint64_t a = KMajorDescriptor(shared_.query);
    uint64_t b = KMajorDescriptor(shared_.keys[stage]);
    constexpr uint64_t kNextTile = sizeof(CodeTile) >> 4;
    float accumulators[kScores];
#pragma unroll
    for (int group = 0; group < kScaleGroups; ++group) {
      if (group == kLoadGroups) MbarrierWaitUnlimited(shared_.full[stage][1], at.parity);
      WarpgroupArrive();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        WgmmaF8(accumulators, a + i * kDescriptor32Bytes, b + i * kDescriptor32Bytes, i > 0);
      }
      WarpgroupCommitBatch();
      WarpgroupWaitAll(accumulators);
      AddScaled(accumulators, group, stage, scores);
      a = Opaque(a + kNextTile);
      b = Opaque(b + kNextTile);
    }
    AddRope(stage, accumulators, scores);
  }
  __device__ __forceinline__ void AddScaled(const float (&accumulators)[kScores], int group, int stage,
                                            float (&scores)[kScores]) {
    const float of_heads[2] = {shared_.query_scales[group][HeadRow(0)],
                               shared_.query_scales[group][HeadRow(1)]};
#pragma unroll
    for (int i = 0; i < kScores; i += 8) {
      const KeyFactors of_keys = FactorsOf(shared_.scales[stage].of_key[group], i / 8);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float scaled = accumulators[i + j] * of_keys.x[j / 4 * 2 + j % 2],
                    of_head = of_heads[j / 2 % 2];
        scores[i + j] = group == 0 ? scaled * of_head : fmaf(scaled, of_head, scores[i + j]);
      }
    }
  }
  __device__ __forceinline__ void AddRope(int stage, float (&accumulators)[kScores],
                                          float (&scores)[kScores]) {
    const uint64_t a = KMajorDescriptor(&shared_.query_rope), b = KMajorDescriptor(&shared_.rope[stage]);
    WarpgroupArrive();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      WgmmaBf16(accumulators, a + i * kDescriptor32Bytes, b + i * kDescriptor32Bytes, i > 0);
    }
    WarpgroupCommitBatch();
    WarpgroupWaitAll(accumulators);
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] += accumulators[i];
  }

  // Online softmax: computes the running maximum and sums after this tile, the factor of the outputs before
  // it, and its weights as codes. `at`: the tile's stage.
  __device__ __forceinline__ void Softmax(int32_t tile, const Pipeline& at, bool first,
                                          float (&scores)[kScores]) {
    if (!AllAttended(tile)) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        if (!Attended(tile * kKeyTile + Key(i))) scores[i] = kMaskedScore;
      }
    }
    float largest[2] = {kMaskedScore, kMaskedScore};
#pragma unroll
    for (int i = 0; i < kScores; ++i) largest[i % 4 / 2] = fmaxf(largest[i % 4 / 2], scores[i]);
    float4 state = make_float4(kFirstMax, kFirstMax, 0.0f, 0.0f);
    if (!first) {
      const Pipeline before = PipelineOf(added_);
      MbarrierWaitUnlimited(shared_.weights_ready[before.stage], before.parity);
      state = shared_.softmax[1 - group_][thread_];
    }
    const float max[2] = {fmaxf(state.x, QuadMax(largest[0]) * p_.score_scale),
                          fmaxf(state.y, QuadMax(largest[1]) * p_.score_scale)};
    const float keep[2] = {exp2f(state.x - max[0]), exp2f(state.y - max[1])};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i] = Exp2(fmaf(scores[i], p_.score_scale, -max[i % 4 / 2]));
    }
    SyncGroup();  // all warps have added the tile that was in this stage before
    shared_.softmax[group_][thread_] = make_float4(max[0], max[1], fmaf(state.z, keep[0], TileSum(scores, 0)),
                                                   fmaf(state.w, keep[1], TileSum(scores, 1)));
    if (lane_ % 4 == 0) {
      shared_.keep[at.stage][HeadRow(0)] = keep[0];
      shared_.keep[at.stage][HeadRow(1)] = keep[1];
    }
    StoreWeights(at.stage, scores);
    FenceProxyAsync();
    __syncwarp();
    if (lane_ == 0) MbarrierArrive(shared_.weights_ready[at.stage]);
  }

  // The key of scores[i].
  __device__ __forceinline__ int Key(int i) const { return i / 4 * 8 + lane_ % 4 * 2 + i % 2; }
  // Factors of TileScales for this thread's keys among 16: the keys of scores[8 i], [8 i + 1], [8 i + 4] and
  // [8 i + 5].
  struct KeyFactors {
    float x[4];
  };
  __device__ __forceinline__ KeyFactors FactorsOf(const float (&factors)[kKeyTile], int i) const {
    const float4 four = reinterpret_cast<const float4*>(factors)[i * 4 + lane_ % 4];
    return {{four.x, four.y, four.z, four.w}};
  }

  static __device__ __forceinline__ float TileSum(const float (&weights)[kScores], int half) {
    float sums[kKeyTile / 16];
#pragma unroll
    for (int keys = 0; keys < kKeyTile / 16; ++keys) {
      const float* const first = &weights[8 * keys + 2 * half];
      sums[keys] = (first[0] + first[1]) + (first[4] + first[5]);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  // Codes in the order of PlaceOf: a thread has four adjacent ones of each 16.
  __device__ __forceinline__ void StoreWeights(int stage, const float (&weights)[kScores]) {
    // The swizzle of CodeTile::At, for both rows. Opaque, because the compiler would otherwise keep all
    // addresses from tile to tile.
    const uint32_t swizzle = Opaque(static_cast<uint32_t>(lane_ / 4 * 16));
#pragma unroll
    for (int group = 0; group < kScaleGroups; ++group) {
      uint8_t* const codes = shared_.weights[stage][group / kLoadGroups].codes;
#pragma unroll
      for (int keys = 0; keys < kKeyTile / 16; ++keys) {
        const KeyFactors factors = FactorsOf(shared_.scales[stage].of_weight[group], keys);
        const uint32_t at = (group % kLoadGroups * kKeyTile + keys * 16) ^ swizzle;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* const w = &weights[8 * keys + 2 * half];
          *reinterpret_cast<uint32_t*>(codes + HeadRow(half) * kTileRowBytes + at + lane_ % 4 * 4) =
              CodePair(w[0] * factors.x[0], w[1] * factors.x[1]) |
              CodePair(w[4] * factors.x[2], w[5] * factors.x[3]) << 16;
        }
      }
    }
  }

  const DecodePlan& p_;
  Fp8DecodeShared& shared_;
  const int lane_;
  const int thread_;  // of the group
  const int group_;
  int added_ = 0;  // tiles, modulo kPeriod
  uint32_t item_parity_ = 0;

  Fp8Outputs<kBlocks> outputs_;
};

}  // namespace foredraft::cuda::fp8_decode
