// Attention in the prefill form: a block has 64 queries of one head and walks the keys of the segment in
// tiles of 64, upward, with mma.sync.
//
// A row's maximum, sum and output stay FP32 over all tiles, also from one segment to the next, and tiles are
// counted from position 0. So the boundaries of segments, chunks and blocks do not change bits, and neither
// do tiles past a row's own position (attention_tile.h).

#include "base/check.h"
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

constexpr int kQueryTile = 64;
constexpr int kWarps = kQueryTile / 16;
constexpr int kThreads = kWarps * kWarpLanes;

struct PrefillPlan {
  MlaPrefillParams op;
  float score_scale;  // scale * log2 e
  int32_t aligned;    // 16-byte copies and paired stores are possible
  int32_t segment_end;
};

// kKeyStride, kValueStride: elements of a row in shared memory. kNope, kRope, kValue: a head's sizes if known
// at compile time, else 0.
// kStages: tiles of keys in shared memory; with 2, the next one loads while this one is used.
template <int kKeyStrideOf, int kValueStrideOf, int kNope, int kRope, int kValue, int kBlocksPerSmOf,
          int kStagesOf = 2>
struct PrefillShape {
  static constexpr int kStages = kStagesOf;
  static constexpr int kKeyStride = kKeyStrideOf;
  static constexpr int kValueStride = kValueStrideOf;
  static constexpr int kBlocksPerSm = kBlocksPerSmOf;
  static constexpr bool kExact = kNope > 0;  // only for aligned rows of exactly this size
  static constexpr int kColumnBlocks = (kExact ? kValue : kValueStride) / 16;

  static __device__ __forceinline__ int Nope(const MlaPrefillParams& op) {
    return kExact ? kNope : op.nope_dim;
  }
  static __device__ __forceinline__ int Rope(const MlaPrefillParams& op) {
    return kExact ? kRope : op.rope_dim;
  }
  static __device__ __forceinline__ int Value(const MlaPrefillParams& op) {
    return kExact ? kValue : op.value_dim;
  }
};

using R1PrefillShape = PrefillShape<192, 128, 128, 64, 128, 2>;
using WidePrefillShape = PrefillShape<256, 256, 0, 0, 0, 1>;
using SmallPrefillShape = PrefillShape<256, 256, 0, 0, 0, 1, 1>;  // as Wide, in 99 KB of shared memory
using NarrowPrefillShape = PrefillShape<64, 64, 0, 0, 0, 4>;

template <class Shape>
struct PrefillShared {
  RowTile<kQueryTile, Shape::kKeyStride> query;
  RowTile<kKeyTile, Shape::kKeyStride> keys[Shape::kStages];
  RowTile<kKeyTile, Shape::kValueStride> values[Shape::kStages];
};

__device__ __forceinline__ int Padded(int elements) { return (elements + 15) / 16 * 16; }

// The attention of one block's queries; members are per thread.
template <class Shape>
class QueryTileAttention {
 public:
  using Shared = PrefillShared<Shape>;

  __device__ __forceinline__ QueryTileAttention(const PrefillPlan& p, int32_t first_row, int32_t head,
                                                Shared& shared)
      : p_(p),
        shared_(shared),
        first_row_(first_row),
        head_(head),
        lane_(threadIdx.x % kWarpLanes),
        warp_(threadIdx.x / kWarpLanes),
        nope_(Shape::Nope(p.op)),
        width_(Shape::Nope(p.op) + Shape::Rope(p.op)),
        value_(Shape::Value(p.op)),
        first_position_(p.op.chunk_first + first_row) {}

  __device__ __forceinline__ void Run() {
    LoadQueries();
    Clear();
    if (p_.op.segment_first > p_.op.first_position) LoadState();
    const int32_t last_row = min(first_row_ + kQueryTile, p_.op.q.rows) - 1;
    const int32_t begin = p_.op.segment_first / kKeyTile;
    const int32_t tiles = min(p_.op.chunk_first + last_row, p_.segment_end - 1) / kKeyTile + 1;
    LoadTile(begin, 0);
    for (int32_t tile = begin; tile < tiles; ++tile) {
      const int stage = (tile - begin) % Shape::kStages;
      CpAsyncWait<0>();
      __syncthreads();  // this tile has arrived, and the previous tile's stage is free
      if (Shape::kStages == 2 && tile + 1 < tiles) LoadTile(tile + 1, 1 - stage);
      float scores[kKeyTile / 8][4];
      Score(shared_.keys[stage], scores);
      Mask(tile * kKeyTile, scores);
      Softmax(scores);
      MultiplyValues(scores, shared_.values[stage]);
      if (Shape::kStages == 1 && tile + 1 < tiles) {
        __syncthreads();  // all warps have used the tile
        LoadTile(tile + 1, 0);
      }
    }
    StoreOutput();
  }

 private:
  __device__ __forceinline__ bool Aligned() const { return Shape::kExact || p_.aligned; }
  // The query, within the tile, of this thread's fragment rows.
  __device__ __forceinline__ int Query(int half) const { return warp_ * 16 + half * 8 + lane_ / 4; }

  __device__ __forceinline__ void LoadQueries() {
    for (int i = warp_ * 4 + lane_ / 8; i < kQueryTile; i += kWarps * 4) {
      const int32_t r = first_row_ + i;
      const bf16* q = r < p_.op.q.rows ? p_.op.q.row(r) + static_cast<int64_t>(head_) * width_ : nullptr;
      const RowParts row = {q, nullptr, width_, width_};
      for (int column = lane_ % 8 * 8; column < Padded(width_); column += 64) {
        FillChunk(shared_.query.At(i, column), row, column, Aligned(), p_.op.q.data);
      }
    }
  }

  // The state of head head_ of row r: value_ outputs, then the maximum; at value_ + 4 begin the sums of the
  // four lanes.
  __device__ __forceinline__ float* State(int32_t r) const {
    return p_.op.state.row(r) + static_cast<int64_t>(head_) * (value_ + kPrefillStateExtra);
  }
  // Calls visit(half, i, column) for this thread's outputs: out_[i / 4][i / 2 % 2][half * 2 + i % 2].
  template <class Visit>
  __device__ __forceinline__ void ForEachOutput(int half, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < Shape::kColumnBlocks * 4; ++i) {
      const int column = i / 2 * 8 + lane_ % 4 * 2 + i % 2;
      if (column < value_) visit(out_[i / 4][i / 2 % 2][half * 2 + i % 2], column);
    }
  }
  __device__ __forceinline__ void LoadState() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t r = first_row_ + Query(half);
      if (r >= p_.op.q.rows) continue;
      const float* const state = State(r);
      max_[half] = state[value_];
      sum_[half] = state[value_ + 4 + lane_ % 4];
      ForEachOutput(half, [&](float& sum, int column) { sum = state[column]; });
    }
  }
  __device__ __forceinline__ void StoreState(int half, int32_t r) {
    float* const state = State(r);
    if (lane_ % 4 == 0) state[value_] = max_[half];
    state[value_ + 4 + lane_ % 4] = sum_[half];
    ForEachOutput(half, [&](float& sum, int column) { state[column] = sum; });
  }

  // Keys outside the segment become zeros; their rows are not read.
  __device__ __forceinline__ void LoadTile(int32_t tile, int stage) {
#pragma unroll
    for (int round = 0; round < kKeyTile / (kWarps * 4); ++round) {
      const int i = (round * kWarps + warp_) * 4 + lane_ / 8;
      const int32_t key = tile * kKeyTile + i - p_.op.segment_first;
      const bool present = key >= 0 && key < p_.op.kv.rows;
      const bf16* kv = present ? p_.op.kv.row(key) + static_cast<int64_t>(head_) * (nope_ + value_) : nullptr;
      const RowParts key_row = {kv, p_.op.k_pe.row(key), nope_, width_};
      const RowParts value_row = {present ? kv + nope_ : nullptr, nullptr, value_, value_};
      for (int column = lane_ % 8 * 8; column < Padded(width_); column += 64) {
        FillChunk(shared_.keys[stage].At(i, column), key_row, column, Aligned(), p_.op.kv.data);
      }
      for (int column = lane_ % 8 * 8; column < Padded(value_); column += 64) {
        FillChunk(shared_.values[stage].At(i, column), value_row, column, Aligned(), p_.op.kv.data);
      }
    }
    CpAsyncCommit();
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      max_[half] = kFirstMax;
      sum_[half] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < Shape::kColumnBlocks * 8; ++i) out_[i / 8][i / 4 % 2][i % 4] = 0.0f;
  }

  __device__ __forceinline__ void Score(RowTile<kKeyTile, Shape::kKeyStride>& keys,
                                        float (&scores)[kKeyTile / 8][4]) {
#pragma unroll
    for (int i = 0; i < kKeyTile / 8 * 4; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll 4
    for (int column = 0; column < Padded(width_); column += 16) {
      uint32_t a[4];
      LoadA(a, shared_.query, warp_ * 16, column, lane_);
#pragma unroll
      for (int group = 0; group < kKeyTile / 16; ++group) {
        uint32_t b[4];
        LoadKeys(b, keys, group * 16, column, lane_);
        MmaPair(scores[2 * group], scores[2 * group + 1], a, b);
      }
    }
  }

  __device__ __forceinline__ void Mask(int32_t first_key, float (&scores)[kKeyTile / 8][4]) {
#pragma unroll
    for (int i = 0; i < kKeyTile / 8 * 4; ++i) {
      const int32_t position = first_key + i / 4 * 8 + lane_ % 4 * 2 + i % 2;
      // Unsigned, so that a position before the first one is larger than any.
      const uint32_t key = static_cast<uint32_t>(position - p_.op.first_position);
      const uint32_t own = static_cast<uint32_t>(first_position_ + Query(i % 4 / 2) - p_.op.first_position);
      if (key > own) scores[i / 4][i % 4] = kMaskedScore;
    }
  }

  // Online softmax: turns scores into weights, updates the running maximum, rescales the running sums and
  // outputs.
  __device__ __forceinline__ void Softmax(float (&scores)[kKeyTile / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = kMaskedScore;
#pragma unroll
      for (int i = 0; i < kKeyTile / 4; ++i) largest = fmaxf(largest, scores[i / 2][half * 2 + i % 2]);
      const float next = fmaxf(max_[half], QuadMax(largest) * p_.score_scale);
      const float keep = exp2f(max_[half] - next);
      max_[half] = next;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kKeyTile / 8; ++i) {
        float(&pair)[4] = scores[i];
        pair[half * 2] = exp2f(fmaf(pair[half * 2], p_.score_scale, -next));
        pair[half * 2 + 1] = exp2f(fmaf(pair[half * 2 + 1], p_.score_scale, -next));
        sum += pair[half * 2] + pair[half * 2 + 1];
      }
      sum_[half] = fmaf(sum_[half], keep, sum);
#pragma unroll
      for (int i = 0; i < Shape::kColumnBlocks * 4; ++i) out_[i / 4][i / 2 % 2][half * 2 + i % 2] *= keep;
    }
  }

  __device__ __forceinline__ void MultiplyValues(const float (&weights)[kKeyTile / 8][4],
                                                 RowTile<kKeyTile, Shape::kValueStride>& values) {
#pragma unroll
    for (int group = 0; group < kKeyTile / 16; ++group) {
      const float(&left)[4] = weights[2 * group];
      const float(&right)[4] = weights[2 * group + 1];
      const uint32_t a[4] = {PackBf16(left[0], left[1]), PackBf16(left[2], left[3]),
                             PackBf16(right[0], right[1]), PackBf16(right[2], right[3])};
#pragma unroll
      for (int block = 0; block < Shape::kColumnBlocks; ++block) {
        if (block * 16 >= value_) continue;
        uint32_t b[4];
        LoadValues(b, values, group * 16, block * 16, lane_);
        MmaPair(out_[block][0], out_[block][1], a, b);
      }
    }
  }

  __device__ __forceinline__ void StoreOutput() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = 1.0f / QuadSum(sum_[half]);
      const int32_t r = first_row_ + Query(half);
      if (r >= p_.op.q.rows) continue;
      if (p_.op.chunk_first + r >= p_.segment_end) {
        StoreState(half, r);
        continue;
      }
#pragma unroll
      for (int i = 0; i < Shape::kColumnBlocks * 2; ++i) {
        const int column = i * 8 + lane_ % 4 * 2;
        const int count = value_ - column;
        if (count <= 0) continue;
        const float* sums = &out_[i / 2][i % 2][half * 2];
        StorePair(p_.op.out.row(r) + static_cast<int64_t>(head_) * value_ + column, sums[0] * factor,
                  sums[1] * factor, min(count, 2), Aligned());
      }
    }
  }

  const PrefillPlan& p_;
  Shared& shared_;
  const int32_t first_row_;
  const int32_t head_;
  const int lane_;
  const int warp_;
  const int nope_;
  const int width_;  // nope + rope
  const int value_;
  const int32_t first_position_;  // of the tile's first query

  float max_[2];                           // of Query(half), in units of log2
  float sum_[2];                           // of this thread's weights
  float out_[Shape::kColumnBlocks][2][4];  // two MmaBf16 results each
};

template <class Shape>
__global__ void __launch_bounds__(kThreads, Shape::kBlocksPerSm)
    MlaPrefillTiles(const __grid_constant__ PrefillPlan p) {
  GridDependencySync();
  auto& shared = SharedStorage<PrefillShared<Shape>>();
  // The last queries have the most keys, so they start first.
  const int32_t tile = gridDim.x - 1 - blockIdx.x;
  QueryTileAttention<Shape>(p, tile * kQueryTile, blockIdx.y, shared).Run();
}

template <class Shape>
void LaunchTiles(Stream& stream, const PrefillPlan& plan) {
  const LaunchShape shape = {.grid = dim3((plan.op.q.rows + kQueryTile - 1) / kQueryTile, plan.op.head_count),
                             .block = dim3(kThreads),
                             .shared_bytes = sizeof(PrefillShared<Shape>)};
  Launch(stream, MlaPrefillTiles<Shape>, shape, plan);
}

template <class Shape>
bool Fits() {
  return sizeof(PrefillShared<Shape>) <= SharedMemoryLimit();
}

template <class T>
bool Aligned16(const Matrix<T>& rows) {
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 8 == 0;
}

bool RowsAligned(const MlaPrefillParams& p) {
  return p.nope_dim % 8 == 0 && p.rope_dim % 8 == 0 && p.value_dim % 8 == 0 && Aligned16(p.q) &&
         Aligned16(p.kv) && Aligned16(p.k_pe) && Aligned16(p.out);
}

}  // namespace

void MlaPrefill(Stream& stream, const MlaPrefillParams& p) {
  const int32_t width = p.nope_dim + p.rope_dim;
  CHECK_LE(width, 256);
  CHECK_LE(p.value_dim, 256);
  CHECK_GT(p.scale, 0.0f);
  CHECK_LE(p.segment_first, p.chunk_first);
  CHECK(p.segment_first == p.first_position || p.segment_first % kKeyTile == 0);
  const int32_t segment_end = p.segment_first + p.kv.rows;
  CHECK(p.state || (p.segment_first == p.first_position && p.chunk_first + p.q.rows <= segment_end));
  const PrefillPlan plan = {
      .op = p, .score_scale = p.scale * kLog2E, .aligned = RowsAligned(p), .segment_end = segment_end};
  if (p.nope_dim == 128 && p.rope_dim == 64 && p.value_dim == 128 && plan.aligned && Fits<R1PrefillShape>()) {
    LaunchTiles<R1PrefillShape>(stream, plan);
  } else if (width <= 64 && p.value_dim <= 64) {
    LaunchTiles<NarrowPrefillShape>(stream, plan);
  } else if (Fits<WidePrefillShape>()) {
    LaunchTiles<WidePrefillShape>(stream, plan);
  } else {
    LaunchTiles<SmallPrefillShape>(stream, plan);
  }
}

}  // namespace foredraft::cuda
