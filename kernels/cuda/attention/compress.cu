// The compressor's entries, in two kernels: the first pools the candidates; the second norms, rotates and
// stores the entry, and keeps the state. Pooled values are bit-equal to the CPU's: candidates are added in
// ascending order with the same exponential.

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

struct CompressPlan {
  CompressParams op;
  int32_t candidates;      // the most that an entry has
  int32_t rows_per_block;  // of PoolKernel
  int32_t pitch;           // the width, rounded up to a multiple of 4
  float* pooled;           // [R, pitch]: of rows that complete an entry
};

// ---- pooling ----

// A block has kPoolColumns columns of an entry, four per thread, so that an entry occupies 16 blocks. Each of
// the kPoolGroups threads with the same columns takes every kPoolGroups-th candidate, so all 128 candidates
// of HCA are in flight at once.
constexpr int kPoolThreads = 128;
constexpr int kPoolColumns = 32;
constexpr int kPoolGroups = kPoolThreads / (kPoolColumns / 4);
// Candidates of a thread that are in flight. CSA's 8 candidates are at most one per thread, so its kernel has
// a batch of 1: with the registers for more, an SM would hold only 3 blocks when 128 rows complete an entry
// at once.
constexpr int kPoolBatch = 8;

// Shared memory of PoolKernel.
struct PoolShared {
  Candidate* candidates;            // [candidates]
  float (*weights)[kPoolColumns];   // [candidates]; at first the gates
  float (*products)[kPoolColumns];  // [candidates]; at first the values
  float (*largest)[kPoolColumns];   // [kPoolGroups]; at the end [0] has the sum of the weights

  static constexpr size_t Bytes(int32_t candidates) {
    return candidates * sizeof(Candidate) +
           (2 * size_t(candidates) + kPoolGroups) * kPoolColumns * sizeof(float);
  }
  __device__ PoolShared(void* memory, int32_t count)
      : candidates(reinterpret_cast<Candidate*>(reinterpret_cast<float (*)[kPoolColumns]>(memory) +
                                                2 * count + kPoolGroups)),
        weights(reinterpret_cast<float (*)[kPoolColumns]>(memory)),
        products(weights + count),
        largest(products + count) {}
};

// The candidate of the token at `position`: from the forward if that has the token, else from the state.
// `half`: which half of the token's channels.
__device__ Candidate CandidateAt(const CompressParams& p, int32_t row, int32_t position, int32_t half) {
  const int32_t channels = p.values.cols;
  const int64_t offset = static_cast<int64_t>(half) * p.layout.width();
  const float* const ape = p.ape + static_cast<int64_t>(position % p.ratio) * channels + offset;
  const int64_t at = RowAt(p.index, row, position);
  if (at >= 0) return {p.values.row(at) + offset, p.gates.row(at) + offset, ape};
  const float* const kept = MappedRow(p.state, p.index.slots[row], position);
  return {kept + offset, kept + channels + offset, ape};
}

__device__ __forceinline__ float4& FourAt(float* row, int32_t column) {
  return *reinterpret_cast<float4*>(row + column);
}
__device__ __forceinline__ Vec4 ToVec4(const float4& four) { return {{four.x, four.y, four.z, four.w}}; }
__device__ __forceinline__ float4 ToFloat4(const Vec4& four) {
  return make_float4(four.x[0], four.x[1], four.x[2], four.x[3]);
}

__device__ __forceinline__ void TakeLargest(Vec4& largest, const Vec4& four) {
#pragma unroll
  for (int i = 0; i < 4; ++i) largest.x[i] = four.x[i] > largest.x[i] ? four.x[i] : largest.x[i];
}

// Loads columns [first, first + 4) of the thread's candidates; returns the largest of their gates, with ape.
template <bool aligned, int kBatch>
__device__ __forceinline__ Vec4 LoadCandidates(const PoolShared& shared, int32_t count, int32_t group,
                                               int32_t own, int32_t first, int32_t width) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  Vec4 largest = {{kLowest, kLowest, kLowest, kLowest}};
  for (int32_t batch = group; batch < count; batch += kBatch * kPoolGroups) {
    Vec4 gates[kBatch], ape[kBatch], values[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int32_t c = batch + b * kPoolGroups;
      if (c >= count || first >= width) continue;
      gates[b] = LoadVec4<aligned>(shared.candidates[c].gates, first, width);
      ape[b] = LoadVec4<aligned>(shared.candidates[c].ape, first, width);
      values[b] = LoadVec4<aligned>(shared.candidates[c].values, first, width);
    }
    IssueLoads();
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int32_t c = batch + b * kPoolGroups;
      if (c >= count || first >= width) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) gates[b].x[i] = __fadd_rn(gates[b].x[i], ape[b].x[i]);
      TakeLargest(largest, gates[b]);
      FourAt(shared.weights[c], own) = ToFloat4(gates[b]);
      FourAt(shared.products[c], own) = ToFloat4(values[b]);
    }
  }
  return largest;
}

// The block's columns of the gated sum of row r's entry: a softmax over the candidates per channel. All
// threads compute weights and products; then one warp adds the weights and another the products, a lane per
// column.
template <bool aligned, int kBatch>
__device__ void PoolRow(const CompressPlan& plan, int32_t r, const PoolShared& shared) {
  const CompressParams& p = plan.op;
  const int32_t last = p.index.positions[r];
  const int32_t first_position = last + 1 - p.ratio;  // of the span
  const int32_t oldest = p.overlapping != 0 && first_position > 0 ? first_position - p.ratio : first_position;
  const int32_t count = last + 1 - oldest;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t c = thread; c < count; c += kPoolThreads) {
    const int32_t position = oldest + c;
    shared.candidates[c] =
        CandidateAt(p, r, position, p.overlapping != 0 && position >= first_position ? 1 : 0);
  }
  __syncthreads();

  const int32_t own = thread % (kPoolColumns / 4) * 4, group = thread / (kPoolColumns / 4);
  const int32_t block_first = static_cast<int32_t>(blockIdx.y) * kPoolColumns;
  const int32_t width = p.layout.width();
  FourAt(shared.largest[group], own) =
      ToFloat4(LoadCandidates<aligned, kBatch>(shared, count, group, own, block_first + own, width));
  __syncthreads();
  Vec4 largest = ToVec4(FourAt(shared.largest[0], own));
#pragma unroll
  for (int g = 1; g < kPoolGroups; ++g) TakeLargest(largest, ToVec4(FourAt(shared.largest[g], own)));
#pragma unroll 2
  for (int32_t c = group; c < count; c += kPoolGroups) {
    Vec4 weights = ToVec4(FourAt(shared.weights[c], own));
    Vec4 products = ToVec4(FourAt(shared.products[c], own));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights.x[i] = Exp(__fsub_rn(weights.x[i], largest.x[i]));
      products.x[i] = __fmul_rn(weights.x[i], products.x[i]);
    }
    FourAt(shared.weights[c], own) = ToFloat4(weights);
    FourAt(shared.products[c], own) = ToFloat4(products);
  }
  __syncthreads();

  const int32_t warp = thread / 32, lane = thread % 32;
  float sum = 0.0f;
  if (warp < 2) {
    float(*const terms)[kPoolColumns] = warp == 0 ? shared.weights : shared.products;
#pragma unroll 16
    for (int32_t c = 0; c < count; ++c) sum = __fadd_rn(sum, terms[c][lane]);
  }
  if (warp == 0) shared.largest[0][lane] = sum;
  __syncthreads();
  if (warp == 1 && block_first + lane < width) {
    plan.pooled[static_cast<int64_t>(r) * plan.pitch + block_first + lane] =
        __fdiv_rn(sum, shared.largest[0][lane]);
  }
  __syncthreads();  // the next row writes the candidates
}

__device__ __forceinline__ bool CompletesEntry(const CompressParams& p, int32_t r) {
  return p.index.slots[r] >= 0 && (p.index.positions[r] + 1) % p.ratio == 0;
}

// Block (x, y) pools columns kPoolColumns y .. of the rows that complete an entry, among rows_per_block rows.
//
// Bytes of an entry of V4-Flash: values and gates HCA 128 x 512 x 2 x 4 = 524,288, CSA 8 x 512 x 2 x 4 =
// 32,768; ape is shared by all entries. Entries come every `ratio` rows, so that is 4 KB (CSA 8 KB) a row.
template <bool aligned, int kBatch>
__global__ void __launch_bounds__(kPoolThreads) PoolKernel(const __grid_constant__ CompressPlan plan) {
  GridDependencySync();
  const PoolShared shared(&SharedStorage<float>(), plan.candidates);
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * plan.rows_per_block;
  const int32_t end = min(begin + plan.rows_per_block, plan.op.index.rows);
#pragma unroll 1
  for (int32_t r = begin; r < end; ++r) {
    if (CompletesEntry(plan.op, r)) PoolRow<aligned, kBatch>(plan, r, shared);
  }
}

// ---- entries and state ----

// clang-format off
// Shared memory of EntriesKernel:
//   float pooled[pitch]
//   float sums[kMaxWarps]
// clang-format on

// Writes the entry of the span that row r completes. The block has RmsThreads(d, 4) threads, which fixes the
// order of the norm's sum. An entry of V4-Flash has 1,024 bytes, in FP8 608.
template <bool aligned, DType kDType>
__device__ void WriteEntry(const CompressPlan& plan, int32_t r) {
  const CompressParams& p = plan.op;
  const KvRowLayout layout = KeyLayout<kDType>(p.layout);
  const int32_t width = layout.width();
  float* const pooled = &SharedStorage<float>();
  float* const sums = pooled + plan.pitch;
  const int32_t own = 4 * static_cast<int32_t>(threadIdx.x);
  const int32_t step = 4 * static_cast<int32_t>(blockDim.x);
  const float* const row = plan.pooled + static_cast<int64_t>(r) * plan.pitch;
  float sum = 0.0f;
  for (int32_t i = own; i < width; i += step) {
    const Vec4 four = LoadVec4<aligned>(row, i, width);
    sum = AddSquares(sum, four);  // columns past the last one are 0
    FourAt(pooled, i) = ToFloat4(four);
  }
  const float factor = RmsFactor(sum, width, p.eps, sums);
  __syncthreads();  // pairs of a rotation may be another thread's columns

  const int32_t last = p.index.positions[r], first = last + 1 - p.ratio;
  const auto normed = [&](int32_t i) { return __fmul_rn(p.norm_weight[i], __fmul_rn(pooled[i], factor)); };
  const TailRotation rotation = {.cos_sin = p.cos_sin + static_cast<int64_t>(first) * layout.rope_dim,
                                 .width = width,
                                 .rope_dim = layout.rope_dim,
                                 .sign = 1.0f};
  uint8_t* const entry = MappedRow(p.entries, p.index.slots[r], last / p.ratio);
  for (int32_t i = own; HasColumns<kDType>(i, width); i += step) {
    Vec4 four = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((aligned && kDType == DType::kBF16) || i + j < width) four.x[j] = normed(i + j);
    }
    if (i < width) four = rotation.Apply<aligned>(four, i, normed);
    const LatentCodes codes = EncodeKey<kDType>(layout, i, four);
    StoreKey<aligned, kDType>(layout, entry, i, four, codes);
  }
}

// Keeps four columns of the values and gates of row r, if its position has memory. Runs after all pooling,
// because a row of this forward may take the memory of a position that pooling reads.
//
// Bytes of a row of V4-Flash: 8 d (CSA: 16 d) read and written, 4,096 (8,192) each way.
template <bool aligned>
__device__ void KeepState(const CompressParams& p, int32_t r, int32_t first) {
  const int32_t channels = p.values.cols;
  const int32_t slot = p.index.slots[r];
  if (first >= channels || slot < 0) return;
  float* const kept = p.state.row(slot, p.index.positions[r]);
  if (kept == nullptr) return;
  StoreVec4<aligned>(kept, first, channels, LoadVec4<aligned>(p.values.row(r), first, channels));
  StoreVec4<aligned>(kept + channels, first, channels, LoadVec4<aligned>(p.gates.row(r), first, channels));
}

// Block (r, 0) writes row r's entry, block (r, 1 + y) keeps its columns 4 blockDim.x y ...
template <bool aligned, DType kDType>
__global__ void __launch_bounds__(32 * kMaxWarps) EntriesKernel(const __grid_constant__ CompressPlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  if (blockIdx.y == 0) {
    if (CompletesEntry(plan.op, r)) WriteEntry<aligned, kDType>(plan, r);
  } else {
    KeepState<aligned>(plan.op, r, 4 * static_cast<int32_t>((blockIdx.y - 1) * blockDim.x + threadIdx.x));
  }
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
  constexpr int32_t kMostBlocks = 512;  // of rows; most rows of a long forward complete nothing
  const int32_t rows = p.index.rows, pitch = (width + 3) / 4 * 4;
  if (rows == 0) return;
  const size_t pooled_bytes = sizeof(float) * rows * static_cast<size_t>(pitch);
  const CompressPlan plan = {
      .op = p,
      .candidates = (p.overlapping != 0 ? 2 : 1) * p.ratio,
      .rows_per_block = (rows + kMostBlocks - 1) / kMostBlocks,
      .pitch = pitch,
      .pooled = static_cast<float*>(static_cast<CudaStream&>(stream).Scratch(pooled_bytes))};
  const auto blocks = [](int32_t count, int32_t per_block) {
    return static_cast<uint32_t>((count + per_block - 1) / per_block);
  };
  const bool one_each = plan.candidates <= kPoolGroups;
  Launch(stream,
         one_each ? (aligned ? PoolKernel<true, 1> : PoolKernel<false, 1>)
                  : (aligned ? PoolKernel<true, kPoolBatch> : PoolKernel<false, kPoolBatch>),
         {.grid = dim3(blocks(rows, plan.rows_per_block), blocks(width, kPoolColumns)),
          .block = dim3(kPoolThreads),
          .shared_bytes = PoolShared::Bytes(plan.candidates)},
         plan);
  const uint32_t threads = RmsThreads(width, 4);
  const LaunchShape shape = {
      .grid = dim3(static_cast<uint32_t>(rows), 1 + blocks(channels, static_cast<int32_t>(4 * threads))),
      .block = dim3(threads),
      .shared_bytes = (pitch + kMaxWarps) * sizeof(float)};
  WithKvDType(p.layout.dtype, [&](auto dtype) {
    Launch(stream, aligned ? EntriesKernel<true, dtype()> : EntriesKernel<false, dtype()>, shape, plan);
  });
}

}  // namespace foredraft::cuda
