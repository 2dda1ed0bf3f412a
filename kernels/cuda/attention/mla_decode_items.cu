// The attention of one row, up to 64 heads and one split (attention_heads.h): cp.async loads tiles of 64 keys
// from the paged cache; for a row with a list, the keys of its list. Coded rows are decoded on the way, so
// everything else is as for BF16.

#include "kernels/cuda/attention/attention_heads.h"
#include "kernels/cuda/attention/kv_row_load.h"
#include "kernels/cuda/attention/mla_decode.h"
#include "kernels/cuda/attention/mla_decode_combine.h"
#include "kernels/cuda/attention/mla_decode_search.h"
#include "kernels/cuda/common/ptx.h"

namespace foredraft::cuda {
namespace {

template <class Shape>
struct DecodeShared : HeadsShared<Shape> {
  float2 combined[Shape::kHeads];  // max, sum of the splits so far
  DecodeItem item;
};

static_assert(sizeof(DecodeShared<SmallFp8DecodeShape>) <= 99 << 10, "what every GPU has");

// The attention of one item by one block; members are per thread.
template <class Shape, DType kDType>
class ItemAttention {
 public:
  using Shared = DecodeShared<Shape>;

  __device__ __forceinline__ ItemAttention(const DecodePlan& p, Shared& shared)
      : p_(p),
        item_(shared.item),
        shared_(shared),
        latent_(Shape::Latent(p.op.layer)),
        width_(Shape::Width(p.op.layer)),
        last_place_(shared.item.last_place),
        heads_(shared, width_, latent_, p.score_scale) {}

  __device__ __forceinline__ void Run() {
    LoadQuery();
    for (int32_t i = 0; i < item_.split_count; ++i) {
      const bool last = i + 1 == item_.split_count;
      const auto [begin, end] = SplitTiles(p_.op, item_.split_len, item_.first_split + i, last_place_);
      heads_.Clear([](int) { return kFirstMax; });
      heads_.Attend(*this, begin, end);
      if (!item_.begins_row) {
        StorePartial(item_.partial + i * p_.head_tiles);
        continue;
      }
      if (item_.combines()) CombineSplit(i == 0, last);
      if (last && item_.partial >= 0) StorePartial(item_.partial);
      if (last && item_.partial < 0) StoreOutput();
    }
  }

  // ---- the keys of heads_ ----

  __device__ __forceinline__ void Locate(int32_t tile) {
    const int32_t place = tile * kKeyTile + heads_.LookedUpKey();
    row_ = Attends(place) ? p_.op.layer.row(p_.op.index.slots[item_.row], p_.op.position_at(item_.row, place))
                          : nullptr;
  }
  __device__ __forceinline__ void Load(int stage) {
    if constexpr (Heads::kFp8Products) KeepScales(stage);
    // Coded rows pass through registers, and R1's shape has few left.
    [[maybe_unused]] constexpr int kUnroll = kDType != DType::kBF16 ? 1 : 3;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const uint8_t* const row = heads_.CopiedRow(row_, round);
      if constexpr (Shape::kExact && kDType == DType::kBF16) {
        heads_.CopyExactKey(stage, round, reinterpret_cast<const bf16*>(row), p_.op.layer.data);
        continue;
      }
      bf16* const chunk = heads_.CopiedChunk(stage, round);
      const int first = heads_.lane() % 8 * 8;
#pragma unroll kUnroll
      for (int column = first; column < heads_.PaddedWidth(); column += 64) {
        FillKey(chunk + (column - first), row, column);
      }
    }
  }
  __device__ __forceinline__ void Fetch() {}
  __device__ __forceinline__ void Store(int, int) {}
  __device__ __forceinline__ bool Attended(int, int32_t tile, int i) const {
    return Attends(tile * kKeyTile + i);
  }

 private:
  using Heads = AttentionHeads<Shape>;
  static constexpr int kRounds = Heads::kRounds;

  __device__ __forceinline__ bool Aligned() const { return Shape::kExact || p_.aligned; }
  __device__ __forceinline__ bool Attends(int32_t place) const {
    return place >= p_.op.first_position && place <= last_place_;
  }
  // How many heads there are from the item's first one on; the block has up to kHeads of them.
  __device__ __forceinline__ int HeadCount() const {
    return p_.op.head_count - item_.head_tile * Shape::kHeads;
  }

  __device__ __forceinline__ void LoadQuery() {
    const auto row_of = [&](int i) -> RowParts {
      const int64_t head = item_.head_tile * Shape::kHeads + i;
      return {head < p_.op.head_count ? p_.op.q_lat.row(item_.row) + head * latent_ : nullptr,
              p_.op.q.row(item_.row) + (head + 1) * p_.op.head_dim - (width_ - latent_), latent_, width_};
    };
    heads_.LoadQuery(row_of, Aligned(), p_.op.layer.data);
    if constexpr (Heads::kFp8Products) heads_.RoundQuery(latent_);
  }

  // Keeps the scales of the key that this thread has looked up.
  __device__ __forceinline__ void KeepScales(int stage) {
    const KvRowLayout layout = {latent_, width_ - latent_, kDType};
#pragma unroll
    for (int group = 0; group < Shape::kWeightTiles; ++group) {
      const bool present = row_ != nullptr && group < layout.group_count();
      const float scale = present ? KvScaleAt(row_, layout, group * layout.group) : 1.0f;
      shared_.fp8.exponents[stage][group][heads_.LookedUpKey()] = Heads::Fp8::ExponentOf(scale);
    }
  }

  // Fills a chunk with elements [column, column + 8) of a cache row; zeros past its end and for a masked row,
  // which is not read.
  __device__ __forceinline__ void FillKey(bf16* chunk, const uint8_t* row, int column) {
    if constexpr (kDType == DType::kBF16) {
      const RowParts parts = {reinterpret_cast<const bf16*>(row), nullptr, width_, width_};
      FillChunk(chunk, parts, column, Aligned(), p_.op.layer.data);
      return;
    }
    const KvRowLayout layout = {latent_, width_ - latent_, kDType};
    const bool present = row != nullptr && column < width_;
    if (Aligned()) {
      uint4 elements = make_uint4(0, 0, 0, 0);
      if (present) elements = LoadKvEight<kDType>(row, layout, column);
      *reinterpret_cast<uint4*>(chunk) = elements;
      return;
    }
    for (int i = 0; i < 8; ++i) {
      chunk[i] = present && column + i < width_ ? LoadKvElement<kDType>(row, layout, column + i) : bf16{0};
    }
  }

  // Stores the result of a split, or of the merged splits, as number `partial`.
  __device__ __forceinline__ void StorePartial(int32_t partial) {
    const int64_t first_head = static_cast<int64_t>(partial) * Shape::kHeads;
    if (heads_.lane() % 4 == 0 && heads_.warp() == 0) {
      heads_.ForEachHead(Shape::kHeads, [&](int tile, int half, int head) {
        p_.partial_stats[first_head + head] =
            item_.combines() ? shared_.combined[head] : make_float2(heads_.Max(tile, half), heads_.Sum(head));
      });
    }
    heads_.ForEachHead(HeadCount(), [&](int tile, int half, int head) {
      float* const out = p_.partials + (first_head + head) * latent_;
      heads_.ForEachPair(tile, half, [&](const float* sums, int column, int count) {
        StorePair(out + column, sums[0], sums[1], count, Aligned());
      });
    });
  }

  // Merges this split into the previous ones, whose output is in this thread's part of
  // `running_outputs`. The merged output is in heads_, and unless this split is the last one, also in
  // `running_outputs`.
  __device__ __forceinline__ void CombineSplit(bool first, bool last) {
    constexpr int kVectors = Shape::kColumnBlocks * 2;  // of a tile of heads
    float* const outputs = p_.running_outputs + static_cast<int64_t>(blockIdx.x) * Shape::kStateFloats;
    float4* const running = reinterpret_cast<float4*>(outputs) + threadIdx.x;
#pragma unroll
    for (int tile = 0; tile < Shape::kHeadTiles; ++tile) {
      CombineStep step[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float before = first ? heads_.Max(tile, half) : shared_.combined[heads_.Head(tile, half)].x;
        step[half] = CombineMax(before, heads_.Max(tile, half));
      }
      float4* const of_tile = running + tile * kVectors * Shape::kThreads;
      if (!first) {
        CombineOutputs<kVectors, Shape::kThreads>(
            of_tile, step, [this, tile](int pair) -> float* { return heads_.Outputs(tile, pair); });
      }
      if (!last) {
#pragma unroll
        for (int pair = 0; pair < kVectors; ++pair) {
          const float(&sums)[4] = heads_.Outputs(tile, pair);
          of_tile[pair * Shape::kThreads] = make_float4(sums[0], sums[1], sums[2], sums[3]);
        }
      }
    }
    __syncthreads();  // all threads have read `combined`
    if (heads_.warp() == 0 && heads_.lane() % 4 == 0) {
      heads_.ForEachHead(Shape::kHeads, [&](int tile, int half, int head) {
        float2& combined = shared_.combined[head];
        const float max = heads_.Max(tile, half), sum = heads_.Sum(head);
        const CombineStep step = CombineMax(combined.x, max);
        combined = first ? make_float2(max, sum) : make_float2(step.max, CombineSum(combined.y, sum, step));
      });
    }
    __syncthreads();
  }

  __device__ __forceinline__ void StoreOutput() {
    heads_.ForEachHead(HeadCount(), [&](int tile, int half, int head) {
      const float factor = 1.0f / (item_.combines() ? shared_.combined[head].y : heads_.Sum(head));
      bf16* const out =
          p_.op.out.row(item_.row) + static_cast<int64_t>(item_.head_tile * Shape::kHeads + head) * latent_;
      heads_.ForEachPair(tile, half, [&](const float* sums, int column, int count) {
        StorePair(out + column, sums[0] * factor, sums[1] * factor, count, Aligned());
      });
    });
  }

  const DecodePlan& p_;
  const DecodeItem& item_;
  Shared& shared_;
  const int latent_;
  const int width_;
  const int32_t last_place_;

  Heads heads_;
  const uint8_t* row_;  // of the key of the next tile that this thread looks up; null: masked
};

template <class Shape, DType kDType>
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
    ItemAttention<Shape, kDType>(p, shared).Run();
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
template bool DecodeItemsFit<WideFp8DecodeShape>();

template <class Shape>
void LaunchDecodeItems(Stream& stream, const DecodePlan& plan, int32_t blocks) {
  const LaunchShape shape = {
      .grid = dim3(blocks), .block = dim3(Shape::kThreads), .shared_bytes = sizeof(DecodeShared<Shape>)};
  if constexpr (Shape::kWeightTiles > 1) {
    Launch(stream, MlaDecodeItems<Shape, DType::kF8E4M3>, shape, plan);
  } else {
    WithKvDType(plan.op.layer.dtype,
                [&](auto dtype) { Launch(stream, MlaDecodeItems<Shape, dtype()>, shape, plan); });
  }
}

template void LaunchDecodeItems<R1DecodeShape>(Stream&, const DecodePlan&, int32_t);
template void LaunchDecodeItems<WideDecodeShape>(Stream&, const DecodePlan&, int32_t);
template void LaunchDecodeItems<SmallDecodeShape>(Stream&, const DecodePlan&, int32_t);
template void LaunchDecodeItems<NarrowDecodeShape>(Stream&, const DecodePlan&, int32_t);
template void LaunchDecodeItems<WideFp8DecodeShape>(Stream&, const DecodePlan&, int32_t);
template void LaunchDecodeItems<SmallFp8DecodeShape>(Stream&, const DecodePlan&, int32_t);

}  // namespace foredraft::cuda
