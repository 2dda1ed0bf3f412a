#pragma once

// Attention of one row and 16 or 64 heads by one block (attention_heads.h) over a list of keys, which are
// also the values: what the attention ops without latents share. Their parameters have the same names; the
// ops differ in which keys a row attends. cp.async loads tiles of 64 keys from the forward's rows and from
// the paged cache; coded rows are decoded by the threads that load them.
//
// Tiles are counted from the start of a row's list, and the softmax goes through them in order, so a row's
// own list alone fixes its bits; where a key lies in memory does not matter.

#include "base/check.h"
#include "kernels/cuda/attention/attention_heads.h"
#include "kernels/cuda/attention/fp8_key.h"
#include "kernels/cuda/attention/kv_row_load.h"
#include "kernels/cuda/attention/kv_row_store.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/ops/attention.h"

namespace foredraft::cuda {

template <class Keys>
struct AttentionPlan {
  typename Keys::Params op;
  typename Keys::Divisors divisors;  // of op's paged rows
  float score_scale;                 // scale * log2 e
  int32_t head_tiles;                // blocks of a row
  int32_t aligned;                   // 16-byte copies and paired stores are possible
};

// kExact: the shape takes only aligned rows of kStride elements and, of coded rows, only kFp8KeyLayout's.
template <int kHeadTiles, int kWarps, int kStrideOf, int kStages, bool kExactOf, int kBlocksPerSm>
struct AttentionShape : HeadsShape<kHeadTiles, kWarps, kStrideOf, kStrideOf, kStages, kBlocksPerSm> {
  static constexpr bool kExact = kExactOf;
};

using ManyHeadsShape = AttentionShape<4, 8, 512, 2, true, 1>;  // 201 KB
using FewHeadsShape = AttentionShape<1, 4, 512, 2, true, 1>;   // 147 KB
using OneStageShape = AttentionShape<1, 4, 512, 1, false, 1>;  // 83 KB, for other rows and GPUs with 99 KB
using NarrowShape = AttentionShape<1, 4, 128, 2, false, 4>;    // 39 KB, up to 128 wide

template <class Shape>
struct AttentionShared : HeadsShared<Shape> {
  int32_t present[Shape::kStages][kKeyTile];  // 0: past the row's keys
};

// The attention of one row and one tile of heads by one block; members are per thread. Keys(p, divisors, row)
// has the row and the count of its keys, and finds a key's row in three steps. Each needs what the step
// before it loads: Name(key), then Page(), then Row(), which is null past the last key.
template <class Shape, class Keys, DType kDType>
class RowAttention {
 public:
  using Shared = AttentionShared<Shape>;

  __device__ __forceinline__ RowAttention(const AttentionPlan<Keys>& p, int32_t row, int32_t head_tile,
                                          Shared& shared)
      : p_(p),
        shared_(shared),
        attended_(p.op, p.divisors, row),
        first_head_(head_tile * Shape::kHeads),
        width_(Shape::kExact ? Shape::kStride : p.op.layout.width()),
        heads_(shared, width_, width_, p.score_scale) {}

  __device__ __forceinline__ void Run() {
    const auto row_of = [&](int i) -> RowParts {
      const int64_t head = first_head_ + i;
      return Whole(head < p_.op.head_count ? p_.op.q.row(Row()) + head * width_ : nullptr);
    };
    named_ = attended_.Name(LookedUpKey(0));
    heads_.LoadQuery(row_of, Aligned(), p_.op.q.data);
    heads_.Clear([&](int head) { return fmaxf(Sink(head), kFirstMax); });
    paged_ = attended_.Page(named_);
    named_ = attended_.Name(LookedUpKey(1));
    // There is at least one tile: a row has its own key.
    heads_.Attend(*this, 0, (attended_.count + kKeyTile - 1) / kKeyTile);
    StoreOutput();
  }

  // ---- the keys of heads_ ----

  // Takes the last step for a tile, and one step for each of the next two, so that no step waits for memory.
  __device__ __forceinline__ void Locate(int32_t tile) {
    LocateRow();
    LocateNext(tile);
  }
  __device__ __forceinline__ void Load(int stage) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) LoadRound(stage, round);
  }
  __device__ __forceinline__ void LoadPart(int stage, int32_t tile, int part) {
    if (part < kRounds) LoadRound(stage, part);
    if (part == kRounds) CpAsyncCommit();
    if (part == kRounds + 2) LocateRow();
    if (part == kRounds + 4) LocateNext(tile + 2);
  }
  __device__ __forceinline__ void Fetch() {
    if constexpr (kThroughRegisters) {
      const uint8_t* const looked_up = Heads::kFetchesEarly ? row_ : located_before_;
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        parts_[round].Load(heads_.CopiedRow(looked_up, round), heads_.lane() % 8);
      }
    }
  }
  __device__ __forceinline__ void Store(int stage, int part) {
    if constexpr (kThroughRegisters) {
      constexpr int kFirst = Heads::kStoreParts - kRounds * kFp8CodeLines;  // the loads have until then
      static_assert(kFirst >= 0);
      if (part < kFirst) return;
      const int round = (part - kFirst) % kRounds, line = (part - kFirst) / kRounds;
      *reinterpret_cast<uint4*>(heads_.CopiedChunk(stage, round) + line * 64) = parts_[round].Decoded(line);
    }
  }
  __device__ __forceinline__ bool Attended(int stage, int32_t, int i) const {
    return shared_.present[stage][i] != 0;
  }

 private:
  using Heads = AttentionHeads<Shape>;
  static constexpr int kRounds = Heads::kRounds;
  static constexpr bool kThroughRegisters = kDType == kFp8KeyLayout.dtype && Shape::kExact;

  __device__ __forceinline__ int32_t LookedUpKey(int32_t tile) const {
    return tile * kKeyTile + heads_.LookedUpKey();
  }

  __device__ __forceinline__ void LocateRow() {
    located_before_ = row_;
    row_ = attended_.Row(paged_);
    if constexpr (kDType != DType::kBF16) PrefetchRow();
  }
  __device__ __forceinline__ void LocateNext(int32_t tile) {
    paged_ = attended_.Page(named_);
    named_ = attended_.Name(LookedUpKey(tile + 2));
  }
  __device__ __forceinline__ void LoadRound(int stage, int round) {
    if (round == 0 && heads_.lane() % 8 < kRounds) {
      shared_.present[stage][LookedUpKey(0)] = row_ != nullptr;
    }
    const uint8_t* const row = heads_.CopiedRow(row_, round);
    if constexpr (kThroughRegisters) {
      CopyRotated(stage, round, row);
    } else if constexpr (kDType != DType::kBF16) {
      LoadCodes(stage, round, row);
    } else {
      CopyKey(stage, round, reinterpret_cast<const bf16*>(row));
    }
  }

  // Threads that decode codes wait for their loads; after this prefetch they wait for L2, not for memory. The
  // lanes that look up the same row share its cache lines; a row need not begin at a line.
  __device__ __forceinline__ void PrefetchRow() const {
    constexpr int kLineBytes = 128, kLanes = 8 / kRounds;
    const int bytes = Layout().bytes();
    const uint8_t* const row = row_ != nullptr ? row_ : p_.op.keys.data;
#pragma unroll
    for (int line = 0; line * kLineBytes < bytes + kLineBytes; line += kLanes) {
      PrefetchLine(row + min((line + heads_.lane() % 8 / kRounds) * kLineBytes, bytes - 1));
    }
  }

  // Unsigned, because the extension of a sign would take a register of its own.
  __device__ __forceinline__ int64_t Row() const { return static_cast<uint32_t>(attended_.row); }
  // The layout of coded rows.
  __device__ __forceinline__ KvRowLayout Layout() const {
    return kThroughRegisters ? kFp8KeyLayout : KeyLayout<kDType>(p_.op.layout);
  }
  __device__ __forceinline__ bool Aligned() const { return Shape::kExact || p_.aligned; }
  __device__ __forceinline__ RowParts Whole(const bf16* row) const { return {row, nullptr, width_, width_}; }
  // The sink in units of log2; any value will do for heads past the last one.
  __device__ __forceinline__ float Sink(int head) const {
    return first_head_ + head < p_.op.head_count ? p_.op.sinks[first_head_ + head] * kLog2E : 0.0f;
  }

  // Begins to copy this thread's chunks of a BF16 row (null: zeros).
  __device__ __forceinline__ void CopyKey(int stage, int round, const bf16* row) {
    if constexpr (Shape::kExact) {
      heads_.CopyExactKey(stage, round, row, p_.op.q.data);
    } else {
      const RowParts parts = Whole(row);
      bf16* const chunk = heads_.CopiedChunk(stage, round);
      const int first = heads_.lane() % 8 * 8;
#pragma unroll 4
      for (int column = first; column < heads_.PaddedWidth(); column += 64) {
        FillChunk(chunk + (column - first), parts, column, Aligned(), p_.op.q.data);
      }
    }
  }

  // Begins to copy this thread's chunk of an FP8 row's BF16 part (null: zeros).
  __device__ __forceinline__ void CopyRotated(int stage, int round, const uint8_t* row) {
    const uint8_t* const from = row + kFp8KeyLayout.rope_offset() + heads_.lane() % 8 * 16;
    const bool present = row != nullptr;
    CpAsync16(heads_.CopiedChunk(stage, round) + kFp8KeyLayout.latent_dim,
              present ? static_cast<const void*>(from) : p_.op.q.data, present);
  }

  // Decodes this thread's chunks of a coded row (null: zeros), four at a time, so that their loads wait for
  // memory together.
  __device__ __forceinline__ void LoadCodes(int stage, int round, const uint8_t* row) {
    constexpr int kTogether = 4;
    const KvRowLayout layout = Layout();
    const int padded = heads_.PaddedWidth(), begin = heads_.lane() % 8 * 8;
    bf16* const chunk = heads_.CopiedChunk(stage, round);
    for (int first = begin; first < padded; first += 64 * kTogether) {
      StoredEight stored[kTogether] = {};
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int column = first + 64 * i;
        if (row == nullptr || column >= width_) continue;
        stored[i] =
            Aligned() ? LoadStoredEight(row, layout, column) : DecodedEight<kDType>(row, layout, column);
      }
      IssueLoads();
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int column = first + 64 * i;
        if (column >= padded) continue;
        *reinterpret_cast<uint4*>(chunk + (column - begin)) = stored[i].template Decoded<kDType>();
      }
    }
  }

  __device__ __forceinline__ void StoreOutput() {
    heads_.ForEachHead(p_.op.head_count - first_head_, [&](int tile, int half, int head) {
      const float factor = 1.0f / (heads_.Sum(head) + exp2f(Sink(head) - heads_.Max(tile, half)));
      float* const out = p_.op.out.row(Row()) + static_cast<int64_t>(first_head_ + head) * width_;
      heads_.ForEachPair(tile, half, [&](const float* sums, int column, int count) {
        StorePair(out + column, sums[0] * factor, sums[1] * factor, count, Aligned());
      });
    });
  }

  const AttentionPlan<Keys>& p_;
  Shared& shared_;
  const Keys attended_;
  const int32_t first_head_;
  const int width_;

  Heads heads_;
  // This thread looks up one key in each tile (LookedUpKey). row_: the row of its key in the next tile, null
  // if there is none; paged_: its key in the tile after that, two steps done; named_: its key in the third
  // tile, one step done.
  const uint8_t* row_ = nullptr;
  typename Keys::Paged paged_;
  typename Keys::Named named_;
  const uint8_t* located_before_;                      // row_ before the last Locate
  Fp8KeyPart parts_[kThroughRegisters ? kRounds : 1];  // of the next tile
};

template <class Shape, class Keys, DType kDType>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    ListedAttentionKernel(const __grid_constant__ AttentionPlan<Keys> p) {
  GridDependencySync();
  const int32_t block = static_cast<int32_t>(blockIdx.x);
  const int32_t row = block / p.head_tiles;
  if (p.op.index.slots[row] < 0) return;
  RowAttention<Shape, Keys, kDType>(p, row, block % p.head_tiles, SharedStorage<AttentionShared<Shape>>())
      .Run();
}

template <class Shape>
bool Fits() {
  return sizeof(AttentionShared<Shape>) <= SharedMemoryLimit();
}

template <class Shape, class Keys>
void LaunchAttention(Stream& stream, AttentionPlan<Keys> plan) {
  plan.head_tiles = (plan.op.head_count + Shape::kHeads - 1) / Shape::kHeads;
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(plan.op.index.rows * plan.head_tiles)),
                             .block = dim3(Shape::kThreads),
                             .shared_bytes = sizeof(AttentionShared<Shape>)};
  WithKvDType(plan.op.layout.dtype,
              [&](auto dtype) { Launch(stream, ListedAttentionKernel<Shape, Keys, dtype()>, shape, plan); });
}

inline bool Aligned16(const void* pointer, int64_t stride) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % 8 == 0;
}

// many_heads: see WindowAttentionChoice.
template <class Keys>
void AttendLists(Stream& stream, const typename Keys::Params& p, bool many_heads, bool aligned) {
  const int32_t width = p.layout.width();
  CHECK_LE(width, FewHeadsShape::kStride);
  CHECK_EQ(p.keys.cols, p.layout.bytes());
  CHECK_EQ(p.window.width, p.layout.bytes());
  CHECK_GT(p.scale, 0.0f);
  const AttentionPlan<Keys> plan = {.op = p,
                                    .divisors = typename Keys::Divisors(p),
                                    .score_scale = p.scale * kLog2E,
                                    .head_tiles = 0,
                                    .aligned = aligned};
  const bool exact = width == ManyHeadsShape::kStride && plan.aligned &&
                     (!p.layout.coded() || (p.layout.dtype == kFp8KeyLayout.dtype &&
                                            p.layout.latent_dim == kFp8KeyLayout.latent_dim));
  if (many_heads && exact && Fits<ManyHeadsShape>()) {
    LaunchAttention<ManyHeadsShape, Keys>(stream, plan);
  } else if (width <= NarrowShape::kStride) {
    LaunchAttention<NarrowShape, Keys>(stream, plan);
  } else if (exact && Fits<FewHeadsShape>()) {
    LaunchAttention<FewHeadsShape, Keys>(stream, plan);
  } else {
    LaunchAttention<OneStageShape, Keys>(stream, plan);
  }
}

// Whether `rows` rows keep the device busy with 64 heads per block.
inline bool ManyRows(Stream& stream, int32_t rows) {
  return rows >= static_cast<CudaStream&>(stream).multiprocessor_count();
}

// Whether outputs, queries and keys allow 16-byte copies.
template <class Params>
bool RowsAligned(const Params& p) {
  // Eight elements must lie in one part of a coded row.
  const bool whole = p.layout.coded() ? p.layout.latent_dim % 8 == 0 && p.layout.rope_dim % 8 == 0
                                      : p.layout.width() % 8 == 0;
  return whole && Aligned16(p.out.data, p.out.stride) && Aligned16(p.q.data, p.q.stride) &&
         Aligned16(p.keys.data, p.keys.stride / 2) && p.keys.stride % 2 == 0 && Aligned16(p.window.data, 0);
}

}  // namespace foredraft::cuda
