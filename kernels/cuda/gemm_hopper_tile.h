#ifndef FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_TILE_H_
#define FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_TILE_H_

// The mainloop of the GEMM kernels for Hopper (gemm_hopper.cu, gemm_gate_up.cu): a producer thread, consumer
// warpgroups, and the pipeline between them. The kernels supply the epilogue.

#include <algorithm>

#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/pipeline_state.h"
#include "kernels/cuda/ptx_hopper.h"

namespace foredraft::cuda {

inline constexpr int kSharedBudget = 216 * 1024;  // for the stages
inline constexpr int kGroupThreads = 128;
inline constexpr int kWgmmasPerStage = kTileRowBytes / 32;

struct HopperGemmParams {
  TensorMap x;         // {k, groups or 1, rows}
  TensorMap weight;    // {k, n, groups}
  TensorMap x_scales;  // {rows, k blocks, 1}; FP8
  float* out;
  bf16* out_bf16;
  const float* bias;
  const float* weight_scales;  // [groups][n blocks, weight_scale_pitch]
  int64_t out_stride;
  int64_t out_bf16_stride;
  int64_t out_group_stride;
  int64_t weight_scale_stride;
  int32_t weight_scale_pitch;
  int32_t n;
  int32_t steps;        // k tiles of 128 bytes
  int32_t x_grouped;    // 1: group g reads matrix g of x; 0: all groups read matrix 0
  int32_t pair_stores;  // 1: outputs 2 i and 2 i + 1 of a row can be stored together
  GroupRowRanges ranges;
};

// The tile of a block: each consumer warpgroup has 64 rows by tile_n outputs. The groups have the same
// outputs of different rows; or, with `pair`, the same rows, and the second group the outputs p.n further.
// `other_bytes`: shared memory needed besides the stages.
template <int consumers, int tile_n, bool pair = false, int other_bytes = 0>
struct TileShape {
  static constexpr int kConsumers = consumers;
  static constexpr bool kPair = pair;
  static constexpr int kRows = pair ? 64 : 64 * kConsumers;
  static constexpr int kN = tile_n;
  static constexpr int kWeightRows = pair ? consumers * kN : kN;
  static constexpr int kSums = kN / 2;  // of a thread
  // Narrow tiles get more stages, so that enough bytes are in flight to hide memory latency.
  static constexpr int kStages = (kSharedBudget - other_bytes) / ((kRows + kWeightRows) * kTileRowBytes +
                                                                  kRows * static_cast<int>(sizeof(float)));
};

template <class Tile>
struct HopperShared {
  static constexpr int kStages = Tile::kStages;
  alignas(1024) unsigned char x[kStages][Tile::kRows * kTileRowBytes];
  alignas(1024) unsigned char weight[kStages][Tile::kWeightRows * kTileRowBytes];
  alignas(128) float x_scales[kStages][Tile::kRows];
  Mbarrier full[kStages];   // the stage's bytes have arrived
  Mbarrier empty[kStages];  // all consumer warps have released the stage
  int32_t tile_starts[kMaxGroups + 1];
};

// Calls visit(item) for this block's items, at most `limit` of them; the order is the same in every thread.
template <class Tile, class Visit>
__device__ __forceinline__ void ForItems(const HopperGemmParams& p, const int32_t* tile_starts,
                                         const Visit& visit, int64_t limit = INT32_MAX) {
  const int32_t n_tiles = (p.n + Tile::kN - 1) / Tile::kN;
  const int64_t items = int64_t{tile_starts[p.ranges.groups]} * n_tiles;
  for (int64_t index = blockIdx.x; index < items && limit > 0; index += gridDim.x, --limit) {
    visit(FindItem(p.ranges, tile_starts, Tile::kRows, n_tiles, index));
  }
}

template <bool kF8, class Tile>
__device__ void Produce(const HopperGemmParams& p, HopperShared<Tile>& shared) {
  constexpr int kStepInputs = kF8 ? kTileRowBytes : kTileRowBytes / 2;
  constexpr uint32_t kBytes = (Tile::kRows + Tile::kWeightRows) * kTileRowBytes +
                              (kF8 ? Tile::kRows * static_cast<int>(sizeof(float)) : 0);
  const uint64_t weight_policy = CachePolicy<CacheHint::kEvictFirst>();  // read once
  const uint64_t x_policy = CachePolicy<CacheHint::kEvictLast>();        // read by many blocks
  const auto load_weight = [&](int stage, const GemmItem& item, int32_t step) {
    MbarrierArriveExpectTx(shared.full[stage], kBytes);
    const int32_t output = item.tile_n * Tile::kN;
    TmaLoad(shared.weight[stage], p.weight, step * kStepInputs, output, item.group, shared.full[stage],
            weight_policy);
    if constexpr (Tile::kPair) {
      TmaLoad(shared.weight[stage] + Tile::kN * kTileRowBytes, p.weight, step * kStepInputs, p.n + output,
              item.group, shared.full[stage], weight_policy);
    }
  };
  // No kernel writes weights, so the first stages' weights are loaded before GridDependencyWait. (If the
  // items depend on the previous kernel's output, RunHopperGemm has already waited.)
  int32_t early = 0;
  ForItems<Tile>(
      p, shared.tile_starts,
      [&](const GemmItem& item) {
        for (; early < p.steps && early < Tile::kStages; ++early) load_weight(early, item, early);
      },
      1);
  GridDependencyWait();
  PipelineState<Tile::kStages> pipeline;
  ForItems<Tile>(p, shared.tile_starts, [&](const GemmItem& item) {
    const int32_t x_group = p.x_grouped != 0 ? item.group : 0;
    for (int32_t step = 0; step < p.steps; ++step, pipeline.Next()) {
      Mbarrier& full = shared.full[pipeline.stage];
      if (early > 0) {
        --early;
      } else {
        MbarrierWait(shared.empty[pipeline.stage], pipeline.parity ^ 1, "gemm stage empty");
        load_weight(pipeline.stage, item, step);
      }
      TmaLoad(shared.x[pipeline.stage], p.x, step * kStepInputs, x_group, item.first_row, full, x_policy);
      if constexpr (kF8) {
        TmaLoad(shared.x_scales[pipeline.stage], p.x_scales, item.first_row, step, 0, full, x_policy);
      }
    }
  });
}

// The first element of a consumer thread's accumulator fragment, in the block's tile.
struct FragmentOrigin {
  int32_t row;     // the thread has rows row and row + 8
  int32_t output;  // the thread has outputs output + 8 j and output + 8 j + 1

  // tile_rows: 64, or 64 per consumer group if the groups have different rows.
  __device__ explicit FragmentOrigin(int32_t tile_rows) {
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    row = thread / 32 * 16 % tile_rows + thread % 32 / 4;  // warp w of group c has rows 64 c + 16 w ..
    output = thread % 4 * 2;
  }
};

// Byte offsets of this thread's consumer group in a stage's x and weight.
template <class Tile>
struct GroupOffsets {
  int group;
  int x;
  int weight;

  __device__ GroupOffsets()
      : group(static_cast<int>(threadIdx.x / kGroupThreads)),
        x(Tile::kPair ? 0 : group * 64 * kTileRowBytes),
        weight(Tile::kPair ? group * Tile::kN * kTileRowBytes : 0) {}
};

// Issues one stage's wgmmas into `d`; from zero unless `add`.
template <bool kF8, int kSums>
__device__ __forceinline__ void Multiply(float (&d)[kSums], const unsigned char* x,
                                         const unsigned char* weight, bool add) {
  const uint64_t a = KMajorDescriptor(x);
  const uint64_t b = KMajorDescriptor(weight);
  WarpgroupArrive();
#pragma unroll
  for (int i = 0; i < kWgmmasPerStage; ++i) {
    if constexpr (kF8) {
      WgmmaF8(d, a + i * kDescriptor32Bytes, b + i * kDescriptor32Bytes, add || i > 0);
    } else {
      WgmmaBf16(d, a + i * kDescriptor32Bytes, b + i * kDescriptor32Bytes, add || i > 0);
    }
  }
  WarpgroupCommitBatch();
}

// The epilogue store(item, origin, sums) receives this thread's accumulators of a tile.
template <class Tile, class Store>
__device__ void ConsumeF8(const HopperGemmParams& p, HopperShared<Tile>& shared, const Store& store) {
  const FragmentOrigin origin(Tile::kRows);
  const GroupOffsets<Tile> offsets;
  PipelineState<Tile::kStages> pipeline;
  ForItems<Tile>(p, shared.tile_starts, [&](const GemmItem& item) {
    const int64_t scale_row =
        (item.tile_n * Tile::kN + (Tile::kPair ? offsets.group * p.n : 0)) / kScaleBlock;
    const float* weight_scales =
        p.weight_scales + item.group * p.weight_scale_stride + scale_row * p.weight_scale_pitch;
    float sum[Tile::kSums];
#pragma unroll
    for (float& value : sum) value = 0.0f;
    for (int32_t step = 0; step < p.steps; ++step, pipeline.Next()) {
      const float weight_scale = __ldg(weight_scales + step);
      float block[Tile::kSums];
      MbarrierWait(shared.full[pipeline.stage], pipeline.parity, "gemm stage full");
      Multiply<true>(block, shared.x[pipeline.stage] + offsets.x,
                     shared.weight[pipeline.stage] + offsets.weight, false);
      const float scale[2] = {__fmul_rn(shared.x_scales[pipeline.stage][origin.row], weight_scale),
                              __fmul_rn(shared.x_scales[pipeline.stage][origin.row + 8], weight_scale)};
      WarpgroupWaitAll(block);
      ReleaseStage(shared.empty[pipeline.stage]);
#pragma unroll
      for (int i = 0; i < Tile::kSums; ++i) sum[i] = fmaf(scale[i / 2 % 2], block[i], sum[i]);
    }
    store(item, origin, sum);
  });
}

template <class Tile, class Store>
__device__ void ConsumeBf16(const HopperGemmParams& p, HopperShared<Tile>& shared, const Store& store) {
  const FragmentOrigin origin(Tile::kRows);
  const GroupOffsets<Tile> offsets;
  PipelineState<Tile::kStages> pipeline;
  ForItems<Tile>(p, shared.tile_starts, [&](const GemmItem& item) {
    float sum[Tile::kSums];
    int last = 0;  // the stage whose wgmmas may be in flight
    for (int32_t step = 0; step < p.steps; ++step, pipeline.Next()) {
      MbarrierWait(shared.full[pipeline.stage], pipeline.parity, "gemm stage full");
      Multiply<false>(sum, shared.x[pipeline.stage] + offsets.x,
                      shared.weight[pipeline.stage] + offsets.weight, step > 0);
      WarpgroupWait<1>();
      if (step > 0) ReleaseStage(shared.empty[last]);
      last = pipeline.stage;
    }
    WarpgroupWaitAll(sum);
    ReleaseStage(shared.empty[last]);
    store(item, origin, sum);
  });
}

// The whole kernel.
template <bool kF8, class Tile, class Store>
__device__ __forceinline__ void RunHopperGemm(const HopperGemmParams& p, HopperShared<Tile>& shared,
                                              const Store& store) {
  constexpr int kConsumers = Tile::kConsumers;
  if (p.ranges.offsets != nullptr) GridDependencyWait();
  if (threadIdx.x < 32) FillTileStarts(p.ranges, Tile::kRows, shared.tile_starts);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(p.x);
    PrefetchTensorMap(p.weight);
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      MbarrierInit(shared.full[stage], 1);
      MbarrierInit(shared.empty[stage], kConsumers * kGroupThreads / 32);
    }
    FenceMbarrierInit();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers * kGroupThreads) {
    if constexpr (kConsumers == 2) WarpgroupRegDealloc<40>();
    if (threadIdx.x == kConsumers * kGroupThreads) Produce<kF8>(p, shared);
  } else {
    if constexpr (kConsumers == 2) WarpgroupRegAlloc<232>();
    GridDependencySync();
    if constexpr (kF8) {
      ConsumeF8(p, shared, store);
    } else {
      ConsumeBf16(p, shared, store);
    }
  }
}

// ---- for the host ----

template <class Tile>
HopperGemmParams MakeHopperParams(const GemmProblem& q) {
  constexpr uint32_t kTileRows = Tile::kRows;
  const bool f8 = q.weight.dtype == DType::kF8E4M3;
  const int32_t element = static_cast<int32_t>(DTypeBytes(q.weight.dtype));
  const uint32_t box_columns = kTileRowBytes / element;
  const uint64_t k = q.weight.k, n = q.weight.n, groups = q.ranges.groups;
  const uint64_t row_bytes = k * element;

  HopperGemmParams p = {};
  p.weight = EncodeTensorMap(
      {.data = q.weight.data,
       .element_bytes = element,
       .extent = {k, n, groups},
       .pitch = {row_bytes, groups > 1 ? static_cast<uint64_t>(q.data_stride) : row_bytes * n},
       .box = {box_columns, Tile::kN, 1},
       .swizzled = true});
  if (f8) {
    const uint64_t rows = q.x_f8.rows, pitch = q.x_f8.pitch;
    p.x = EncodeTensorMap({.data = q.x_f8.codes,
                           .element_bytes = element,
                           .extent = {k, 1, rows},
                           .pitch = {pitch, pitch},
                           .box = {box_columns, 1, kTileRows},
                           .swizzled = true});
    const uint64_t scale_row_bytes = q.x_f8.scale_pitch * sizeof(float), k_blocks = k / kScaleBlock;
    p.x_scales = EncodeTensorMap({.data = q.x_f8.scales,
                                  .element_bytes = sizeof(float),
                                  .extent = {rows, k_blocks, 1},
                                  .pitch = {scale_row_bytes, scale_row_bytes * k_blocks},
                                  .box = {kTileRows, 1, 1},
                                  .swizzled = false});
  } else {
    const bool grouped = q.x_group_stride != 0;
    const uint64_t row_pitch = q.x.stride * sizeof(bf16);
    p.x = EncodeTensorMap({.data = q.x.data,
                           .element_bytes = element,
                           .extent = {k, grouped ? groups : 1, static_cast<uint64_t>(q.x.rows)},
                           .pitch = {grouped ? q.x_group_stride * sizeof(bf16) : row_pitch, row_pitch},
                           .box = {box_columns, 1, kTileRows},
                           .swizzled = true});
    p.x_grouped = grouped;
  }
  p.out = q.out.data;
  p.out_bf16 = q.out_bf16.data;
  p.bias = q.bias;
  p.weight_scales = q.weight.scales;
  p.out_stride = q.out.stride;
  p.out_bf16_stride = q.out_bf16.stride;
  p.out_group_stride = q.out_group_stride;
  p.weight_scale_stride = q.scale_stride;
  p.weight_scale_pitch = ScalePitch(q.weight.k);
  p.n = q.weight.n;
  p.steps = static_cast<int32_t>(row_bytes / kTileRowBytes);
  p.pair_stores = (reinterpret_cast<uintptr_t>(p.out) % 8 | reinterpret_cast<uintptr_t>(p.out_bf16) % 4 |
                   p.out_stride % 2 | p.out_bf16_stride % 2 | p.out_group_stride % 2 | p.n % 2) == 0;
  p.ranges = q.ranges;
  return p;
}

// The grid of a kernel whose groups have tiles_n tiles of outputs: at most a block per multiprocessor.
template <class Tile>
dim3 HopperGrid(Stream& stream, const GroupRowRanges& ranges, int64_t tiles_n) {
  const int64_t full_tiles = (ranges.rows + Tile::kRows - 1) / Tile::kRows;
  const int64_t row_tiles = ranges.offsets != nullptr
                                ? std::min<int64_t>(ranges.rows, full_tiles + ranges.groups)
                                : full_tiles * ranges.groups;
  const int64_t multiprocessors = static_cast<CudaStream&>(stream).multiprocessor_count();
  return dim3(static_cast<uint32_t>(std::min(row_tiles * tiles_n, multiprocessors)));
}

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_TILE_H_
