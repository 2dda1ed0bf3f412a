// Attention of one row and 16 or 64 heads by one block (attention_heads.h): cp.async loads tiles of 64 keys
// from the forward's rows and from the paged cache.
//
// A row's keys are one list: the raw keys by ascending position, then its entries. Tiles are counted from the
// start of this list, and the softmax goes through them in order, so a row's own list alone fixes its bits;
// where a key lies in memory does not matter.

#include "base/check.h"
#include "kernels/cuda/attention/attention_heads.h"
#include "kernels/cuda/attention/mapped_row.h"
#include "kernels/cuda/attention/window_attention.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

struct AttentionPlan {
  WindowAttentionParams op;
  float score_scale;   // scale * log2 e
  int32_t head_tiles;  // blocks of a row
  int32_t aligned;     // 16-byte copies and paired stores are possible
};

// kExact: only for aligned rows of kStride elements.
template <int kHeadTiles, int kWarps, int kStrideOf, int kStages, bool kExactOf, int kBlocksPerSm>
struct AttentionShape : HeadsShape<kHeadTiles, kWarps, kStrideOf, kStrideOf, kStages, kBlocksPerSm> {
  static constexpr bool kExact = kExactOf;
};

using ManyHeadsShape = AttentionShape<4, 8, 512, 2, true, 1>;  // 201 KB
using FewHeadsShape = AttentionShape<1, 4, 512, 2, false, 1>;  // 147 KB
using OneStageShape = AttentionShape<1, 4, 512, 1, false, 1>;  // 83 KB, for GPUs with 99 KB
using NarrowShape = AttentionShape<1, 4, 128, 2, false, 4>;    // 39 KB, up to 128 wide

template <class Shape>
struct AttentionShared : HeadsShared<Shape> {
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

  __device__ __forceinline__ RowAttention(const AttentionPlan& p, int32_t row, int32_t head_tile,
                                          Shared& shared)
      : p_(p),
        shared_(shared),
        attended_(p.op, row),
        first_head_(head_tile * Shape::kHeads),
        width_(Shape::kExact ? Shape::kStride : p.op.keys.cols),
        heads_(shared, width_, width_, p.score_scale) {}

  __device__ __forceinline__ void Run() {
    const auto row_of = [&](int i) -> RowParts {
      const int64_t head = first_head_ + i;
      return Whole(head < p_.op.head_count ? p_.op.q.row(attended_.row) + head * width_ : nullptr);
    };
    heads_.LoadQuery(row_of, Aligned(), p_.op.q.data);
    heads_.Clear([&](int head) { return fmaxf(Sink(head), kFirstMax); });
    // At least one tile: the row's own key.
    heads_.Attend(*this, 0, (attended_.count + kKeyTile - 1) / kKeyTile);
    StoreOutput();
  }

  // ---- the keys of heads_ ----

  __device__ __forceinline__ void Locate(int32_t tile) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      key_rows_[round] = attended_[tile * kKeyTile + heads_.CopiedKey(round)];
    }
  }
  __device__ __forceinline__ void Load(int stage) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int key = heads_.CopiedKey(round);
#pragma unroll 4
      for (int column = heads_.lane() % 8 * 8; column < heads_.PaddedWidth(); column += 64) {
        FillChunk(shared_.keys[stage].At(key, column), Whole(key_rows_[round]), column, Aligned(),
                  p_.op.q.data);
      }
      if (heads_.lane() % 8 == 0) shared_.present[stage][key] = key_rows_[round] != nullptr;
    }
  }
  __device__ __forceinline__ bool Attended(int stage, int32_t, int i) const {
    return shared_.present[stage][i] != 0;
  }

 private:
  using Heads = AttentionHeads<Shape>;
  static constexpr int kRounds = Heads::kRounds;

  __device__ __forceinline__ bool Aligned() const { return Shape::kExact || p_.aligned; }
  __device__ __forceinline__ RowParts Whole(const bf16* row) const { return {row, nullptr, width_, width_}; }
  // The sink in units of log2; of heads past the last one it does not matter.
  __device__ __forceinline__ float Sink(int head) const {
    return first_head_ + head < p_.op.head_count ? p_.op.sinks[first_head_ + head] * kLog2E : 0.0f;
  }

  __device__ __forceinline__ void StoreOutput() {
    heads_.ForEachHead(p_.op.head_count - first_head_, [&](int tile, int half, int head) {
      const float factor = 1.0f / (heads_.Sum(head) + exp2f(Sink(head) - heads_.Max(tile, half)));
      float* const out = p_.op.out.row(attended_.row) + static_cast<int64_t>(first_head_ + head) * width_;
      heads_.ForEachPair(tile, half, [&](const float* sums, int column, int count) {
        StorePair(out + column, sums[0] * factor, sums[1] * factor, count, Aligned());
      });
    });
  }

  const AttentionPlan& p_;
  Shared& shared_;
  const AttendedKeys attended_;
  const int32_t first_head_;
  const int width_;

  Heads heads_;
  const bf16* key_rows_[kRounds];  // of the next tile; null: no key
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
