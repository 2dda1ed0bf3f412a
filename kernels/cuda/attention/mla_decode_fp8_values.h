#pragma once

// The outputs of a consumer group of mla_decode's kernel for Hopper with FP8 products (mla_decode_fp8.cu):
// 256 latent columns of 64 heads.
//
// wgmma needs E4M3 operands whose adjacent bytes are adjacent terms of the sum, here keys; in a tile of keys
// they are latent columns. So the outputs are computed transposed, as V^T P^T: V^T is operand A, which may
// come from registers, and on the way there ldmatrix and a byte permutation transpose it. The keys are then
// in the order of PlaceOf, and so are the codes of a head's weights.

#include <cstdint>

#include "kernels/cuda/attention/mla_decode_fp8_shared.h"
#include "kernels/cuda/common/ptx_attention.h"

namespace foredraft::cuda::fp8_decode {

// Members are per thread. A thread has two adjacent columns of every 64, and two heads of every 8.
template <int kBlocks>
class Fp8Outputs {
 public:
  __device__ __forceinline__ Fp8Outputs(const DecodePlan& p, Fp8DecodeShared& shared, int group)
      : p_(p),
        shared_(shared),
        lane_(threadIdx.x % kWarpLanes),
        warp_(threadIdx.x % kGroupThreads / kWarpLanes),
        group_(group) {}

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kColumnBlocks * kHeadPairs * 4; ++i) Flat(i) = 0.0f;
  }

  // Adds the tile of a stage once its weights are ready, and releases its keys.
  __device__ __forceinline__ void Add(const Pipeline& at) {
    const int stage = at.stage;
    MbarrierWaitUnlimited(shared_.weights_ready[stage], at.parity);
    MbarrierWaitUnlimited(shared_.full[stage][group_], at.parity);
    uint32_t values[kColumnBlocks][kKeySteps][4];
    LoadValues(stage, values);
    const float units[2] = {shared_.scales[stage].of_value[kLoadGroups * group_],
                            shared_.scales[stage].of_value[kLoadGroups * group_ + 1]};
    ReleaseKeys(stage);
    Rescale(shared_.keep[stage]);
    float accumulators[2][kAccumulators];
    const uint64_t weights = KMajorDescriptor(&shared_.weights[stage][group_]);
#pragma unroll
    for (int part = 0; part <= kParts; ++part) {
      if (part < kParts) Start(values[part / 2], weights, part, accumulators[part % 2]);
      if (part == 0) continue;
      if (part < kParts) {
        WarpgroupWaitAllButOne(accumulators[(part - 1) % 2]);
      } else {
        WarpgroupWaitAll(accumulators[(part - 1) % 2]);
      }
      Promote(part - 1, accumulators[(part - 1) % 2], units[(part - 1) / (kParts / 2)]);
    }
  }

  // ---- the result of a split, whose last softmax is group `last_group`'s ----

  // Merges this split into the previous ones, whose output is in this thread's part of
  // `running_outputs`. The merged output is in the registers, and unless this split is the last one, also in
  // `running_outputs`.
  __device__ __forceinline__ void CombineSplit(int last_group, bool first, bool last) {
    float2 steps[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2& combined = Combined(half);
      const float2 stats = Stats(last_group, half);
      const float2 before = first ? make_float2(stats.x, 0.0f) : combined;
      const CombineStep step = CombineMax(before.x, stats.x);
      steps[half] = make_float2(step.keep, step.take);
      __syncwarp();
      if (LeadsRow()) combined = first ? stats : make_float2(step.max, CombineSum(before.y, stats.y, step));
    }
    float4* const running =
        reinterpret_cast<float4*>(p_.running_outputs + static_cast<int64_t>(blockIdx.x) * kHeads * kLatent) +
        threadIdx.x;
    if (!first) {
      Exchange(steps);
      AddRunning(running);
    }
    if (last) return;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float* const sums = Vector(i);
      running[i * kConsumerThreads] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
  }

  // Stores the result of a split, or with `combines` of the merged splits, as number `partial`.
  __device__ __forceinline__ void StorePartial(int last_group, bool combines, int32_t partial) {
    const int64_t first_head = static_cast<int64_t>(partial) * kHeads;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 stats = combines ? Combined(half) : Stats(last_group, half);
      if (group_ == 0 && LeadsRow()) p_.partial_stats[first_head + HeadRow(half)] = stats;
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int next = 0; next < 2; ++next) {
        float* const to = p_.partials + (first_head + Head(i / kColumnBlocks) + next) * kLatent;
        *reinterpret_cast<float2*>(to + Column(i % kColumnBlocks)) =
            make_float2(Vector(i)[2 * next], Vector(i)[2 * next + 1]);
      }
    }
  }

  __device__ __forceinline__ void StoreOutput(int last_group, const DecodeItem& item) {
    float2 factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factors[half].x = 1.0f / (item.combines() ? Combined(half) : Stats(last_group, half)).y;
      factors[half].y = 0.0f;
    }
    Exchange(factors);
    const int32_t head_count = p_.op.head_count - item.head_tile * kHeads;
    bf16* const out = p_.op.out.row(item.row) + static_cast<int64_t>(item.head_tile) * kHeads * kLatent;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int next = 0; next < 2; ++next) {
        const int head = Head(i / kColumnBlocks) + next;
        if (head >= head_count) continue;
        const float factor = Exchanged(head).x;
        StorePair(out + head * kLatent + Column(i % kColumnBlocks), Vector(i)[2 * next] * factor,
                  Vector(i)[2 * next + 1] * factor, 2, true);
      }
    }
  }

 private:
  static constexpr int kColumnBlocks = kLatent / 2 / 64;  // of 64 columns: wgmma's M
  static constexpr int kHeadPairs = kHeads / 8;           // of a thread
  static constexpr int kVectors = kColumnBlocks * kHeadPairs;
  static constexpr int kKeySteps = kKeyTile / 32;
  static constexpr int kPartHeads = 32;
  static constexpr int kParts =
      kColumnBlocks * (kHeads / kPartHeads);  // of a tile's product; two are in flight
  static constexpr int kAccumulators = kPartHeads / 2;

  __device__ __forceinline__ bool LeadsRow() const { return lane_ % 4 == 0; }
  // The first of two adjacent columns and heads.
  __device__ __forceinline__ int Column(int block) const {
    return group_ * (kLatent / 2) + block * 64 + warp_ * 16 + lane_ / 4 * 2;
  }
  __device__ __forceinline__ int Head(int pair) const { return pair * 8 + lane_ % 4 * 2; }
  // Vector i has block i % kColumnBlocks of head pair i / kColumnBlocks.
  __device__ __forceinline__ float* Vector(int i) { return out_[i % kColumnBlocks][i / kColumnBlocks]; }
  __device__ __forceinline__ float& Flat(int i) {
    return out_[i / (kHeadPairs * 4)][i / 4 % kHeadPairs][i % 4];
  }
  // The maximum and the sum of weights of HeadRow(half) in a split, and in the splits so far. By all lanes.
  __device__ __forceinline__ float2 Stats(int last_group, int half) const {
    const float4& state = shared_.softmax[last_group][threadIdx.x % kGroupThreads];
    return half == 0 ? make_float2(state.x, QuadSum(state.z)) : make_float2(state.y, QuadSum(state.w));
  }
  __device__ __forceinline__ float2& Combined(int half) { return shared_.combined[group_][HeadRow(half)]; }

  // Operand A of the products: four keys of a column in each register.
  __device__ __forceinline__ void LoadValues(int stage, uint32_t (&values)[kColumnBlocks][kKeySteps][4]) {
#pragma unroll
    for (int block = 0; block < kColumnBlocks; ++block) {
      CodeTile& keys = shared_.keys[stage][kLoadGroups * group_ + block / 2];
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step) {
        uint32_t pairs[4];  // of columns; of keys 0 .. 7, 8 .. 15, 16 .. 23 and 24 .. 31 of the step
        LdMatrix4Transposed(pairs, keys.At(step * 32 + lane_, block % 2 * 64 + warp_ * 16));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t low = pairs[2 * half], high = pairs[2 * half + 1];
          values[block][step][2 * half] = __byte_perm(low, high, 0x6420);      // the even column
          values[block][step][2 * half + 1] = __byte_perm(low, high, 0x7531);  // the odd one
        }
      }
    }
  }

  // Called once this warp has read all it needs of a tile: scores and scales are read before the softmax.
  __device__ __forceinline__ void ReleaseKeys(int stage) {
    __syncwarp();
    if (lane_ != 0) return;
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if constexpr (kBlocks == 1) {
        MbarrierArrive(shared_.empty[stage][load]);
      } else {
        MbarrierArriveAt(shared_.empty[stage][load], BringerOf(stage, load, kBlocks));
      }
    }
  }

  __device__ __forceinline__ void Rescale(const float (&keep)[kHeads]) {
    const auto of_pair = [&](int pair) { return *reinterpret_cast<const float2*>(&keep[Head(pair)]); };
    bool kept = true;
#pragma unroll
    for (int pair = 0; pair < kHeadPairs; ++pair)
      kept = kept && of_pair(pair).x == 1.0f && of_pair(pair).y == 1.0f;
    // Most tiles leave the maximum unchanged: skip the multiplication by 1.
    if (__all_sync(kAllLanes, kept)) return;
#pragma unroll
    for (int pair = 0; pair < kHeadPairs; ++pair) {
      const float2 factor = of_pair(pair);
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out_[block][pair][i] *= i < 2 ? factor.x : factor.y;
      }
    }
  }

  // A part is 64 columns of 32 heads.
  __device__ __forceinline__ void Start(const uint32_t (&values)[kKeySteps][4], uint64_t weights, int part,
                                        float (&accumulators)[kAccumulators]) {
    const int group = part / (kParts / 2);  // of the two groups of columns
    const uint64_t b = weights + (group * kKeyTile + part % 2 * kPartHeads * kTileRowBytes) / 16;
    WarpgroupArrive();
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      WgmmaF8(accumulators, values[step], b + step * kDescriptor32Bytes, step > 0);
    }
    WarpgroupCommitBatch();
  }
  __device__ __forceinline__ void Promote(int part, const float (&accumulators)[kAccumulators], float unit) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) {
      const int pair = part % 2 * (kPartHeads / 8) + i / 4, column = i / 2 % 2, next = i % 2;
      float& out = out_[part / 2][pair][2 * next + column];
      out = fmaf(accumulators[i], unit, out);
    }
  }

  // Gives the values of each HeadRow to the group's threads that have outputs of its head.
  __device__ __forceinline__ void Exchange(const float2 (&of_rows)[2]) {
    SyncGroup();  // what was exchanged before has been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (LeadsRow()) shared_.exchanged[group_][HeadRow(half)] = of_rows[half];
    }
    SyncGroup();
  }
  __device__ __forceinline__ float2 Exchanged(int head) const { return shared_.exchanged[group_][head]; }
  // CombineSum of all outputs, in two passes, so that a load is added as soon as it arrives, which saves
  // registers. Exchanged() has the factors of the earlier outputs and of these.
  __device__ __forceinline__ void AddRunning(const float4* running) {
#pragma unroll
    for (int pair = 0; pair < kHeadPairs; ++pair) {
      const float take[2] = {Exchanged(Head(pair)).y, Exchanged(Head(pair) + 1).y};
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out_[block][pair][i] *= take[i / 2];
      }
    }
#pragma unroll
    for (int pair = 0; pair < kHeadPairs; ++pair) {
      const float keep[2] = {Exchanged(Head(pair)).x, Exchanged(Head(pair) + 1).x};
      float4 before[kColumnBlocks];
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block)
        before[block] = running[(pair * kColumnBlocks + block) * kConsumerThreads];
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
        float* const out = out_[block][pair];
        out[0] = fmaf(before[block].x, keep[0], out[0]);
        out[1] = fmaf(before[block].y, keep[0], out[1]);
        out[2] = fmaf(before[block].z, keep[1], out[2]);
        out[3] = fmaf(before[block].w, keep[1], out[3]);
      }
      // The barrier keeps the assembler from moving up more loads than there are registers for.
      SyncGroup();
    }
  }
  __device__ __forceinline__ void SyncGroup() { NamedBarrierSync<kGroupThreads>(1 + group_); }

  const DecodePlan& p_;
  Fp8DecodeShared& shared_;
  const int lane_;
  const int warp_;  // of the group
  const int group_;

  float out_[kColumnBlocks][kHeadPairs][4];  // of Head(pair) and the next one, Column(block) and the next one
};

}  // namespace foredraft::cuda::fp8_decode
