#include <cstddef>

#include "base/check.h"
#include "kernels/cuda/attention/mla_decode.h"
#include "kernels/cuda/attention/mla_decode_load.h"
#include "kernels/cuda/attention/mla_decode_search.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

constexpr int32_t kMaxLatent = 512;
constexpr int32_t kMaxWidth = 576;

constexpr int kCombineWarps = 8;  // heads per block

// Merges the partial results of one (row, head), `stride` heads apart, in ascending order.
template <bool aligned>
__device__ __forceinline__ void CombineHead(const DecodePlan& p, int64_t first, int64_t stride, int32_t count,
                                            bf16* out) {
  constexpr int kQuads = kMaxLatent / (4 * kWarpLanes);  // of a lane
  const int32_t latent = p.op.layer.latent_dim;
  const int32_t column = threadIdx.x % kWarpLanes * 4;
  const auto load = [&](int64_t head, int quad) {
    const int32_t at = quad * 4 * kWarpLanes + column;
    return at < latent ? LoadVec4<aligned>(p.partials + head * latent, at, latent) : Vec4{};
  };
  float2 state = {};
  Vec4 sums[kQuads] = {};
  for (int32_t begin = 0; begin < count; begin += kCombineAhead) {
    float2 stats[kCombineAhead];
    Vec4 values[kCombineAhead][kQuads];
#pragma unroll
    for (int i = 0; i < kCombineAhead; ++i) {
      if (begin + i >= count) break;
      const int64_t head = first + (begin + i) * stride;
      stats[i] = p.partial_stats[head];
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) values[i][quad] = load(head, quad);
    }
#pragma unroll
    for (int i = 0; i < kCombineAhead; ++i) {
      if (begin + i >= count) break;
      const bool is_first = begin + i == 0;
      const CombineStep step = CombineMax(state.x, stats[i].x);
#pragma unroll
      for (int j = 0; j < kQuads * 4; ++j) {
        const float next = values[i][j / 4].x[j % 4];
        float& sum = sums[j / 4].x[j % 4];
        sum = is_first ? next : CombineSum(sum, next, step);
      }
      state = is_first ? stats[i] : make_float2(step.max, CombineSum(state.y, stats[i].y, step));
    }
  }
  const float factor = 1.0f / state.y;
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    const int32_t at = quad * 4 * kWarpLanes + column;
#pragma unroll
    for (float& sum : sums[quad].x) sum *= factor;
    if (at < latent) StoreVec4<aligned>(out, at, latent, sums[quad]);
  }
}

// One warp per (row, head) of the rows that several groups computed.
template <bool aligned>
__global__ void __launch_bounds__(kCombineWarps* kWarpLanes)
    CombineSplits(const __grid_constant__ DecodePlan p) {
  GridDependencySync();
  const int32_t row = blockIdx.x;
  const int32_t head = blockIdx.y * kCombineWarps + threadIdx.x / kWarpLanes;
  const RowSplits splits = SplitsOfRow(p.op, row);
  if (head >= p.op.head_count || splits.count < 2 || p.row_begins[row] < 0) return;
  const DecodeGrid grid = {p.op.index.rows, p.groups, p.max_splits, p.row_begins[p.op.index.rows]};
  const RowPartials partials = PartialsOf(grid, {row, p.row_begins[row], splits});
  const int32_t heads = p.head_tiles * p.heads_per_item;
  CombineHead<aligned>(p, static_cast<int64_t>(partials.first) * heads + head, heads,
                       1 + splits.count - partials.merged_splits,
                       p.op.out.row(row) + static_cast<int64_t>(head) * p.op.layer.latent_dim);
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
void MlaDecodeAs(Stream& stream, const MlaDecodeParams& p, const DecodeChoice& choice,
                 void (*launch)(Stream&, const DecodePlan&, int32_t)) {
  const int32_t rows = p.index.rows;
  const int32_t head_tiles = (p.head_count + Shape::kHeads - 1) / Shape::kHeads;
  const int32_t max_splits = MaxSplits(static_cast<int64_t>(p.layer.table_stride) * p.layer.tokens_per_block);
  const int32_t groups = GroupCount(choice.blocks * Shape::kBlocksPerSm, head_tiles, rows, max_splits);
  const int32_t blocks = groups * head_tiles;

  const int64_t partial_heads = PartialCount(rows, groups, max_splits) * head_tiles * Shape::kHeads;
  ScratchLayout layout;
  const size_t row_begins = layout.Add((rows + 1) * sizeof(int32_t));
  const size_t stats = layout.Add(partial_heads * sizeof(float2));
  const size_t sums = layout.Add(partial_heads * p.layer.latent_dim * sizeof(float));
  const size_t running_outputs =
      layout.Add(max_splits > 1 ? blocks * Shape::kStateFloats * sizeof(float) : 0);
  auto& cuda = static_cast<CudaStream&>(stream);
  std::byte* scratch = static_cast<std::byte*>(cuda.Scratch(layout.bytes()));

  const DecodePlan plan = {.op = p,
                           .score_scale = p.scale * kLog2E,
                           .heads_per_item = Shape::kHeads,
                           .head_tiles = head_tiles,
                           .groups = groups,
                           .max_splits = max_splits,
                           .aligned = RowsAligned(p),
                           .pairs = choice.pairs,
                           .row_begins = reinterpret_cast<int32_t*>(scratch + row_begins),
                           .partial_stats = reinterpret_cast<float2*>(scratch + stats),
                           .partials = reinterpret_cast<float*>(scratch + sums),
                           .running_outputs = reinterpret_cast<float*>(scratch + running_outputs)};
  launch(stream, plan, blocks);
  if (max_splits < 2 || groups < 2) return;
  const LaunchShape shape = {.grid = dim3(rows, (p.head_count + kCombineWarps - 1) / kCombineWarps),
                             .block = dim3(kCombineWarps * kWarpLanes)};
  Launch(stream, plan.aligned ? CombineSplits<true> : CombineSplits<false>, shape, plan);
}

}  // namespace

void MlaDecodeBy(const DecodeChoice& choice, Stream& stream, const MlaDecodeParams& p) {
  const KvLayer& layer = p.layer;
  CHECK_LE(layer.latent_dim, kMaxLatent);
  CHECK_LE(layer.row_width(), kMaxWidth);
  CHECK_GT(p.scale, 0.0f);
  if (p.index.rows == 0) return;
  const bool r1_widths = layer.latent_dim == 512 && layer.rope_dim == 64 && RowsAligned(p);
  const bool hopper = r1_widths && choice.hopper && HopperSupportsDecode(p);
  if (layer.fp8_products) {
    CHECK(layer.dtype == DType::kF8E4M3);
    if (hopper) return MlaDecodeAs<R1DecodeShape>(stream, p, choice, LaunchDecodeFp8);
    if (DecodeItemsFit<WideFp8DecodeShape>()) {
      return MlaDecodeAs<WideFp8DecodeShape>(stream, p, choice, LaunchDecodeItems<WideFp8DecodeShape>);
    }
    return MlaDecodeAs<SmallFp8DecodeShape>(stream, p, choice, LaunchDecodeItems<SmallFp8DecodeShape>);
  }
  if (hopper || (r1_widths && p.head_count % 64 == 0 && DecodeItemsFit<R1DecodeShape>())) {
    MlaDecodeAs<R1DecodeShape>(stream, p, choice,
                               hopper ? LaunchDecodeHopper : LaunchDecodeItems<R1DecodeShape>);
  } else if (layer.row_width() <= 128) {
    MlaDecodeAs<NarrowDecodeShape>(stream, p, choice, LaunchDecodeItems<NarrowDecodeShape>);
  } else if (DecodeItemsFit<WideDecodeShape>()) {
    MlaDecodeAs<WideDecodeShape>(stream, p, choice, LaunchDecodeItems<WideDecodeShape>);
  } else {
    MlaDecodeAs<SmallDecodeShape>(stream, p, choice, LaunchDecodeItems<SmallDecodeShape>);
  }
}

void MlaDecode(Stream& stream, const MlaDecodeParams& p) {
  MlaDecodeBy({.blocks = static_cast<CudaStream&>(stream).multiprocessor_count()}, stream, p);
}

}  // namespace foredraft::cuda
