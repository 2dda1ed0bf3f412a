#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/mla_decode.h"
#include "kernels/cuda/mla_decode_search.h"
#include "kernels/cuda/ptx.h"

namespace foredraft::cuda {
namespace {

constexpr int32_t kMaxLatent = 512;
constexpr int32_t kMaxWidth = 576;
// Memory for partials: 2,048 items of 64 heads of R1, for example 128 rows of 8,192 positions. Rows beyond
// that are one item each, which merges its own splits.
constexpr int64_t kPartialBytes = int64_t{256} << 20;

constexpr int kCombineWarps = 8;  // heads per block

// One warp per (row, head): merges the row's splits in ascending order.
__global__ void __launch_bounds__(kCombineWarps* kWarpLanes)
    CombineSplits(const __grid_constant__ DecodePlan p) {
  GridDependencySync();
  const int32_t row = blockIdx.x;
  const int32_t head = blockIdx.y * kCombineWarps + threadIdx.x / kWarpLanes;
  const int32_t lane = threadIdx.x % kWarpLanes;
  const int32_t splits = RowSplits(p.op, row);
  if (head >= p.op.head_count || splits < 2 || p.row_partials[row] < 0) return;

  constexpr int kColumns = kMaxLatent / kWarpLanes;
  const int32_t latent = p.op.layer.latent_dim;
  float2 state = {};
  float sums[kColumns] = {};
  for (int32_t split = 0; split < splits; ++split) {
    const int32_t item = p.row_partials[row] + split * p.head_tiles + head / p.heads_per_item;
    const int64_t at = static_cast<int64_t>(item) * p.heads_per_item + head % p.heads_per_item;
    const float2 next = p.partial_stats[at];
    const float* partial = p.partials + at * latent;
    const FoldStep step = Fold(state.x, next.x);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int32_t column = i * kWarpLanes + lane;
      if (column >= latent) continue;
      sums[i] = split == 0 ? partial[column] : FoldSum(sums[i], partial[column], step);
    }
    state = split == 0 ? next : make_float2(step.max, FoldSum(state.y, next.y, step));
  }
  const float factor = 1.0f / state.y;
  bf16* out = p.op.out.row(row) + static_cast<int64_t>(head) * latent;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int32_t column = i * kWarpLanes + lane;
    if (column < latent) StorePair(out + column, sums[i] * factor, 0.0f, 1, false);
  }
}

bool Aligned16(const void* pointer, int64_t stride) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % 8 == 0;
}

bool RowsAligned(const MlaDecodeParams& p) {
  return p.layer.latent_dim % 8 == 0 && p.layer.rope_dim % 8 == 0 && p.head_dim % 8 == 0 &&
         Aligned16(p.q_lat.data, p.q_lat.stride) && Aligned16(p.q.data, p.q.stride) &&
         Aligned16(p.out.data, p.out.stride) && Aligned16(p.layer.data, 0);
}

// Offsets of consecutive arrays in the stream's scratch memory.
class ScratchLayout {
 public:
  size_t Add(size_t bytes) {
    const size_t begin = bytes_;
    bytes_ += (bytes + 255) / 256 * 256;
    return begin;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

template <class Shape>
void MlaDecodeAs(Stream& stream, const MlaDecodeParams& p, int64_t partial_count,
                 void (*launch)(Stream&, const DecodePlan&, int32_t)) {
  const int32_t head_tiles = (p.head_count + Shape::kHeads - 1) / Shape::kHeads;
  const int64_t reach = static_cast<int64_t>(p.layer.table_stride) * p.layer.tokens_per_block;
  const int64_t max_splits = (reach + kSplitLen - 1) / kSplitLen - p.first_position / kSplitLen;
  const int64_t max_items = p.index.rows * max_splits * head_tiles;
  const int64_t partials = max_splits < 2 ? 0 : std::min(partial_count, max_items);
  CHECK_LE(max_items, std::numeric_limits<int32_t>::max());
  auto& cuda = static_cast<CudaStream&>(stream);
  const int64_t blocks = std::min<int64_t>(max_items, cuda.multiprocessor_count() * Shape::kBlocksPerSm);

  const int64_t item_heads = partials * Shape::kHeads;
  const bool may_fold = max_splits > 1 && partials < max_items;
  ScratchLayout layout;
  const size_t row_partials = layout.Add(p.index.rows * sizeof(int32_t));
  const size_t stats = layout.Add(item_heads * sizeof(float2));
  const size_t sums = layout.Add(item_heads * p.layer.latent_dim * sizeof(float));
  const size_t folds = layout.Add(may_fold ? blocks * Shape::kStateFloats * sizeof(float) : 0);
  std::byte* scratch = static_cast<std::byte*>(cuda.Scratch(layout.bytes()));

  const DecodePlan plan = {.op = p,
                           .score_scale = p.scale * kLog2E,
                           .heads_per_item = Shape::kHeads,
                           .head_tiles = head_tiles,
                           .partial_count = static_cast<int32_t>(partials),
                           .aligned = RowsAligned(p),
                           .row_partials = reinterpret_cast<int32_t*>(scratch + row_partials),
                           .partial_stats = reinterpret_cast<float2*>(scratch + stats),
                           .partials = reinterpret_cast<float*>(scratch + sums),
                           .folds = reinterpret_cast<float*>(scratch + folds)};
  launch(stream, plan, static_cast<int32_t>(blocks));
  if (partials == 0) return;
  const LaunchShape shape = {.grid = dim3(p.index.rows, (p.head_count + kCombineWarps - 1) / kCombineWarps),
                             .block = dim3(kCombineWarps * kWarpLanes)};
  Launch(stream, CombineSplits, shape, plan);
}

}  // namespace

void MlaDecodeBy(const DecodeChoice& choice, Stream& stream, const MlaDecodeParams& p) {
  const KvLayer& layer = p.layer;
  CHECK_LE(layer.latent_dim, kMaxLatent);
  CHECK_LE(layer.row_width(), kMaxWidth);
  CHECK_GT(p.scale, 0.0f);
  if (p.index.rows == 0) return;
  const int64_t partials = choice.partial_count;
  if (layer.latent_dim == 512 && layer.rope_dim == 64 && p.head_count % 64 == 0 && RowsAligned(p) &&
      DecodeItemsFit<R1DecodeShape>()) {
    const bool hopper = choice.hopper && HopperSupportsDecode(layer);
    MlaDecodeAs<R1DecodeShape>(stream, p, partials,
                               hopper ? LaunchDecodeHopper : LaunchDecodeItems<R1DecodeShape>);
  } else if (layer.row_width() <= 128) {
    MlaDecodeAs<NarrowDecodeShape>(stream, p, partials, LaunchDecodeItems<NarrowDecodeShape>);
  } else if (DecodeItemsFit<WideDecodeShape>()) {
    MlaDecodeAs<WideDecodeShape>(stream, p, partials, LaunchDecodeItems<WideDecodeShape>);
  } else {
    MlaDecodeAs<SmallDecodeShape>(stream, p, partials, LaunchDecodeItems<SmallDecodeShape>);
  }
}

void MlaDecode(Stream& stream, const MlaDecodeParams& p) {
  const int64_t heads = p.head_count % 64 == 0 ? 64 : 16;
  const int64_t state_bytes = heads * p.layer.latent_dim * static_cast<int64_t>(sizeof(float));
  MlaDecodeBy({.partial_count = kPartialBytes / state_bytes}, stream, p);
}

}  // namespace foredraft::cuda
