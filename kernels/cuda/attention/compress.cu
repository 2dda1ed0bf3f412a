// The compressor's entries, a block per row. Pooled values are bit-equal to the CPU's: candidates are added
// in ascending order with the same exponential.

#include <limits>

#include "base/check.h"
#include "kernels/cuda/attention/kv_row_store.h"
#include "kernels/cuda/attention/mapped_row.h"
#include "kernels/cuda/attention/rope.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/dense/rms_norm.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/exp.h"

namespace foredraft::cuda {
namespace {

// One token's part in an entry: d values and gates.
struct Candidate {
  const float* values;
  const float* gates;
  const float* ape;
};

constexpr int kFewThreads = 128;  // of an entry of 512 columns, as V4-Flash and V4-Pro have them

struct CompressPlan {
  CompressParams op;
  int32_t candidates;  // the most that an entry has
};

// clang-format off
// Shared memory of EntriesKernel:
//   float pooled[d rounded up to a multiple of 4]
//   float sums[kMaxWarps]
//   Candidate candidates[candidates]
// clang-format on
constexpr int32_t SharedFloats(int32_t width) { return (width + 3) / 4 * 4 + kMaxWarps; }
constexpr size_t SharedBytes(int32_t candidates, int32_t width) {
  return SharedFloats(width) * sizeof(float) + candidates * sizeof(Candidate);
}

// The part of the token at `position`: of the forward if it is in it, else of the state. `half`: which half
// of the token's channels.
__device__ Candidate CandidateAt(const CompressParams& p, int32_t row, int32_t position, int32_t half) {
  const int32_t channels = p.values.cols;
  const int64_t offset = static_cast<int64_t>(half) * p.layout.width();
  const float* const ape = p.ape + static_cast<int64_t>(position % p.ratio) * channels + offset;
  const int64_t at = RowAt(p.index, row, position);
  if (at >= 0) return {p.values.row(at) + offset, p.gates.row(at) + offset, ape};
  const float* const kept = MappedRow(p.state, p.index.slots[row], position);
  return {kept + offset, kept + channels + offset, ape};
}

// Columns [first, first + 4) of the gated sum: a softmax over the candidates per channel. kBatch candidates
// are loaded before the first of them is used: one after the other, the 128 of HCA would each wait for
// memory. Past the last one a batch loads that one again, and does not use it.
template <bool aligned, int kBatch>
__device__ Vec4 Pooled(const Candidate* candidates, int32_t count, int32_t first, int32_t width) {
  const auto gate = [&](const Candidate& c) {
    Vec4 gates = LoadVec4<aligned>(c.gates, first, width);
    const Vec4 ape = LoadVec4<aligned>(c.ape, first, width);
#pragma unroll
    for (int i = 0; i < 4; ++i) gates.x[i] = __fadd_rn(gates.x[i], ape.x[i]);
    return gates;
  };
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  Vec4 largest = {{kLowest, kLowest, kLowest, kLowest}};
  for (int32_t c = 0; c < count; c += kBatch) {
    Vec4 gates[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) gates[b] = gate(candidates[min(c + b, count - 1)]);
    IssueLoads();
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) largest.x[i] = gates[b].x[i] > largest.x[i] ? gates[b].x[i] : largest.x[i];
    }
  }
  Vec4 sum = {};
  Vec4 pooled = {};
  for (int32_t c = 0; c < count; c += kBatch) {
    Vec4 gates[kBatch], values[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const Candidate& candidate = candidates[min(c + b, count - 1)];
      gates[b] = gate(candidate);
      values[b] = LoadVec4<aligned>(candidate.values, first, width);
    }
    IssueLoads();
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      // Selects, not a branch: the compiler would move the loads into it.
      const bool counts = c + b < count;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = Exp(__fsub_rn(gates[b].x[i], largest.x[i]));
        const float more = __fadd_rn(sum.x[i], weight);
        const float pooled_more = __fadd_rn(pooled.x[i], __fmul_rn(weight, values[b].x[i]));
        sum.x[i] = counts ? more : sum.x[i];
        pooled.x[i] = counts ? pooled_more : pooled.x[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) pooled.x[i] = __fdiv_rn(pooled.x[i], sum.x[i]);
  return pooled;
}

// Block r writes the entry of the span that row r completes, if it does. The block has RmsThreads(d, 4)
// threads, at most kThreads, which fixes the order of the norm's sum. Few threads have registers for large
// batches.
//
// Bytes of an entry of V4-Flash: values once, gates twice (the second time from L1 or L2): HCA 128 x 512 x 3
// x 4 = 786,432, CSA 8 x 512 x 3 x 4 = 49,152; ape is shared by all entries; 1,024 written, in FP8 608.
// Entries come every `ratio` rows, so that is 6 KB (CSA 12 KB) a row.
template <bool aligned, bool kFp8, int kThreads>
__global__ void __launch_bounds__(kThreads) EntriesKernel(const __grid_constant__ CompressPlan plan) {
  GridDependencySync();
  const CompressParams& p = plan.op;
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = p.index.slots[r];
  if (slot < 0) return;  // the whole block
  const int32_t last = p.index.positions[r];
  if ((last + 1) % p.ratio != 0) return;
  const KvRowLayout layout = KeyLayout<kFp8>(p.layout);
  const int32_t width = layout.width();
  float* const pooled = &SharedStorage<float>();
  float* const sums = pooled + SharedFloats(width) - kMaxWarps;
  Candidate* const candidates = reinterpret_cast<Candidate*>(sums + kMaxWarps);

  const int32_t first = last + 1 - p.ratio;  // of the span
  const int32_t oldest = p.overlapping != 0 && first > 0 ? first - p.ratio : first;
  const int32_t count = last + 1 - oldest;
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < count; c += static_cast<int32_t>(blockDim.x)) {
    const int32_t position = oldest + c;
    candidates[c] = CandidateAt(p, r, position, p.overlapping != 0 && position >= first ? 1 : 0);
  }
  __syncthreads();

  const int32_t own = 4 * static_cast<int32_t>(threadIdx.x);
  const int32_t step = 4 * static_cast<int32_t>(blockDim.x);
  float sum = 0.0f;
  for (int32_t i = own; i < width; i += step) {
    const Vec4 four = Pooled < aligned, kThreads <= kFewThreads ? 8 : 2 > (candidates, count, i, width);
    sum = AddSquares(sum, four);  // columns past the last one are 0
    *reinterpret_cast<float4*>(pooled + i) = make_float4(four.x[0], four.x[1], four.x[2], four.x[3]);
  }
  const float factor = RmsFactor(sum, width, p.eps, sums);
  __syncthreads();  // pairs of a rotation may be another thread's columns

  const auto normed = [&](int32_t i) { return __fmul_rn(p.norm_weight[i], __fmul_rn(pooled[i], factor)); };
  const TailRotation rotation = {.cos_sin = p.cos_sin + static_cast<int64_t>(first) * layout.rope_dim,
                                 .width = width,
                                 .rope_dim = layout.rope_dim,
                                 .sign = 1.0f};
  uint8_t* const entry = MappedRow(p.entries, slot, last / p.ratio);
  for (int32_t i = own; HasColumns<kFp8>(i, width); i += step) {
    Vec4 four = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((aligned && !kFp8) || i + j < width) four.x[j] = normed(i + j);
    }
    if (i < width) four = rotation.Apply<aligned>(four, i, normed);
    LatentCodes codes = {};
    if constexpr (kFp8) codes = EncodeKey(layout, i, four);
    StoreKey<aligned, kFp8>(layout, entry, i, four, codes);
  }
}

// Keeps the values and gates of every row whose position has memory.
//
// Bytes of a row of V4-Flash: 8 d (CSA: 16 d) read and written, 4,096 (8,192) each way.
template <bool aligned>
__global__ void __launch_bounds__(kVec4Threads) StateKernel(const __grid_constant__ CompressPlan plan) {
  GridDependencySync();
  const CompressParams& p = plan.op;
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t first = FirstColumnOfThread();
  const int32_t channels = p.values.cols;
  const int32_t slot = p.index.slots[r];
  if (first >= channels || slot < 0) return;
  float* const kept = p.state.row(slot, p.index.positions[r]);
  if (kept == nullptr) return;
  StoreVec4<aligned>(kept, first, channels, LoadVec4<aligned>(p.values.row(r), first, channels));
  StoreVec4<aligned>(kept + channels, first, channels, LoadVec4<aligned>(p.gates.row(r), first, channels));
}

template <bool aligned, bool kFp8>
void LaunchEntries(Stream& stream, const CompressPlan& plan) {
  const int32_t width = plan.op.layout.width();
  const uint32_t threads = RmsThreads(width, 4);
  Launch(stream,
         threads <= kFewThreads ? EntriesKernel<aligned, kFp8, kFewThreads>
                                : EntriesKernel<aligned, kFp8, 32 * kMaxWarps>,
         {.grid = dim3(static_cast<uint32_t>(plan.op.index.rows)),
          .block = dim3(threads),
          .shared_bytes = SharedBytes(plan.candidates, width)},
         plan);
}

}  // namespace

void Compress(Stream& stream, const CompressParams& p) {
  const int32_t width = p.layout.width();
  const int32_t channels = p.values.cols;
  CHECK_EQ(channels, (p.overlapping != 0 ? 2 : 1) * width);
  CHECK_EQ(p.state.width, 2 * channels);
  CHECK_EQ(p.entries.width, p.layout.bytes());
  const bool aligned = IsKeyAligned(p.layout, p.entries.data, p.entries.width) &&
                       IsVec4Aligned(p.state.data, p.state.width, width) && IsVec4Aligned(p.values) &&
                       IsVec4Aligned(p.gates) && IsVec4Aligned(p.ape, channels, width) &&
                       IsVec4Aligned(p.norm_weight, width, width) &&
                       IsRotationAligned(p.cos_sin, width, p.layout.rope_dim);
  const CompressPlan plan = {.op = p, .candidates = (p.overlapping != 0 ? 2 : 1) * p.ratio};
  const auto launch = p.layout.fp8 ? (aligned ? LaunchEntries<true, true> : LaunchEntries<false, true>)
                                   : (aligned ? LaunchEntries<true, false> : LaunchEntries<false, false>);
  launch(stream, plan);
  // After all entries: a row of this forward may take the memory of a position that an entry still reads.
  Launch(stream, aligned ? StateKernel<true> : StateKernel<false>, Vec4Grid(p.index.rows, channels), plan);
}

}  // namespace foredraft::cuda
