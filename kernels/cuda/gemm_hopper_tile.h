#ifndef FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_TILE_H_
#define FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_TILE_H_

// The body of the GEMM kernels for Hopper (gemm_hopper.cu, gemm_gate_up.cu): a producer thread, warp groups
// that multiply, the ring of stages between them. Who includes it says what becomes of a tile.

#include <algorithm>

#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/ptx_hopper.h"

namespace foredraft::cuda {

inline constexpr int kSharedBudget = 216 * 1024;  // of the stages
inline constexpr int kGroupThreads = 128;
inline constexpr int kProductsPerStep = kTileRowBytes / 32;

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
  int32_t steps;        // of 128 bytes along k
  int32_t x_grouped;    // group g reads matrix g of x, not matrix 0
  int32_t pair_stores;  // outputs 2 i and 2 i + 1 of a row may be stored together
  GroupRowRanges ranges;
};

// Warp groups that multiply, 64 rows by tile_n outputs each: the same outputs of other rows, or (`pair`)
// other outputs of the same rows, those p.n further. `other_bytes`: of shared memory, beside the stages.
template <int consumers, int tile_n, bool pair = false, int other_bytes = 0>
struct TileShape {
  static constexpr int kConsumers = consumers;
  static constexpr bool kPair = pair;
  static constexpr int kRows = pair ? 64 : 64 * kConsumers;
  static constexpr int kN = tile_n;
  static constexpr int kWeightRows = pair ? consumers * kN : kN;
  static constexpr int kSums = kN / 2;  // of a thread
  // So that what is on its way hides the latency of memory, narrow tiles have more of them.
  static constexpr int kStages = (kSharedBudget - other_bytes) / ((kRows + kWeightRows) * kTileRowBytes +
                                                                  kRows * static_cast<int>(sizeof(float)));
};

template <class Tile>
struct HopperShared {
  static constexpr int kStages = Tile::kStages;
  alignas(1024) unsigned char x[kStages][Tile::kRows * kTileRowBytes];
  alignas(1024) unsigned char weight[kStages][Tile::kWeightRows * kTileRowBytes];
  alignas(128) float x_scales[kStages][Tile::kRows];
  PhaseBarrier full[kStages];   // the stage's bytes are there
  PhaseBarrier empty[kStages];  // every consumer warp is done with them
  int32_t tile_starts[kMaxGroups + 1];
};

// Walks the stages of the ring; the n-th visit of a stage belongs to phase n.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Calls visit(item) for this block's items, or the first `limit` of them, in the same order in every thread
// that asks.
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
  const uint64_t once = CachePolicy<Keep::kBriefly>();
  const uint64_t often = CachePolicy<Keep::kLong>();
  const auto copy_weight = [&](int stage, const GemmItem& item, int32_t step) {
    ArriveAndExpect(shared.full[stage], kBytes);
    const int32_t output = item.tile_n * Tile::kN;
    CopyBox(shared.weight[stage], p.weight, step * kStepInputs, output, item.group, shared.full[stage], once);
    if constexpr (Tile::kPair) {
      CopyBox(shared.weight[stage] + Tile::kN * kTileRowBytes, p.weight, step * kStepInputs, p.n + output,
              item.group, shared.full[stage], once);
    }
  };
  // Nobody writes weights: those of the first stages need not wait for the kernel before this one. (Where the
  // items depend on what it wrote, all threads have waited.)
  int32_t early = 0;
  ForItems<Tile>(
      p, shared.tile_starts,
      [&](const GemmItem& item) {
        for (; early < p.steps && early < Tile::kStages; ++early) copy_weight(early, item, early);
      },
      1);
  GridDependencyWait();
  Ring<Tile::kStages> ring;
  ForItems<Tile>(p, shared.tile_starts, [&](const GemmItem& item) {
    const int32_t x_group = p.x_grouped != 0 ? item.group : 0;
    for (int32_t step = 0; step < p.steps; ++step, ring.Next()) {
      PhaseBarrier& full = shared.full[ring.stage];
      if (early > 0) {
        --early;
      } else {
        WaitPhase(shared.empty[ring.stage], ring.parity ^ 1);
        copy_weight(ring.stage, item, step);
      }
      CopyBox(shared.x[ring.stage], p.x, step * kStepInputs, x_group, item.first_row, full, often);
      if constexpr (kF8) {
        CopyBox(shared.x_scales[ring.stage], p.x_scales, item.first_row, step, 0, full, often);
      }
    }
  });
}

// The tile of one consumer group: 64 rows, as products lay them over its threads.
struct ConsumerPlace {
  int32_t row;     // of the tile: this thread has this one and the one 8 further
  int32_t output;  // of the tile: this thread has this one and the next, and those 8 further, ...

  // tile_rows: 64, or where warp groups have other rows each, so many of them.
  __device__ explicit ConsumerPlace(int32_t tile_rows) {
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    row = thread / 32 * 16 % tile_rows + thread % 32 / 4;  // warps of group c stand at rows 64 c + 16 w
    output = thread % 4 * 2;
  }
};

// One stage's products into `d`; from zero unless `add`.
template <bool kF8, int kSums>
__device__ __forceinline__ void Multiply(float (&d)[kSums], const unsigned char* x,
                                         const unsigned char* weight, bool add) {
  const uint64_t a = TileDescriptor(x);
  const uint64_t b = TileDescriptor(weight);
  ProductsFence();
#pragma unroll
  for (int i = 0; i < kProductsPerStep; ++i) {
    if constexpr (kF8) {
      ProductF8(d, a + i * kDescriptor32Bytes, b + i * kDescriptor32Bytes, add || i > 0);
    } else {
      ProductBf16(d, a + i * kDescriptor32Bytes, b + i * kDescriptor32Bytes, add || i > 0);
    }
  }
  ProductsCommit();
}

__device__ __forceinline__ void Release(PhaseBarrier& empty) {
  __syncwarp();  // all lanes have read what they read of the stage
  if (threadIdx.x % 32 == 0) Arrive(empty);
}

// store(item, place, sums) has a tile of this warp group.
template <class Tile, class Store>
__device__ void ConsumeF8(const HopperGemmParams& p, HopperShared<Tile>& shared, const Store& store) {
  const ConsumerPlace place(Tile::kRows);
  const int group = static_cast<int>(threadIdx.x / kGroupThreads);
  const int x_first = Tile::kPair ? 0 : group * 64 * kTileRowBytes;
  const int weight_first = Tile::kPair ? group * Tile::kN * kTileRowBytes : 0;
  Ring<Tile::kStages> ring;
  ForItems<Tile>(p, shared.tile_starts, [&](const GemmItem& item) {
    const int64_t scale_row = (item.tile_n * Tile::kN + (Tile::kPair ? group * p.n : 0)) / kScaleBlock;
    const float* weight_scales =
        p.weight_scales + item.group * p.weight_scale_stride + scale_row * p.weight_scale_pitch;
    float sum[Tile::kSums];
#pragma unroll
    for (float& value : sum) value = 0.0f;
    for (int32_t step = 0; step < p.steps; ++step, ring.Next()) {
      const float weight_scale = __ldg(weight_scales + step);
      float block[Tile::kSums];
      WaitPhase(shared.full[ring.stage], ring.parity);
      Multiply<true>(block, shared.x[ring.stage] + x_first, shared.weight[ring.stage] + weight_first, false);
      const float scale[2] = {__fmul_rn(shared.x_scales[ring.stage][place.row], weight_scale),
                              __fmul_rn(shared.x_scales[ring.stage][place.row + 8], weight_scale)};
      ProductsDone(block);
      Release(shared.empty[ring.stage]);
#pragma unroll
      for (int i = 0; i < Tile::kSums; ++i) sum[i] = fmaf(scale[i / 2 % 2], block[i], sum[i]);
    }
    store(item, place, sum);
  });
}

template <class Tile, class Store>
__device__ void ConsumeBf16(const HopperGemmParams& p, HopperShared<Tile>& shared, const Store& store) {
  const ConsumerPlace place(Tile::kRows);
  const int group = static_cast<int>(threadIdx.x / kGroupThreads);
  const int x_first = Tile::kPair ? 0 : group * 64 * kTileRowBytes;
  const int weight_first = Tile::kPair ? group * Tile::kN * kTileRowBytes : 0;
  Ring<Tile::kStages> ring;
  ForItems<Tile>(p, shared.tile_starts, [&](const GemmItem& item) {
    float sum[Tile::kSums];
    int last = 0;  // the stage whose products may still run
    for (int32_t step = 0; step < p.steps; ++step, ring.Next()) {
      WaitPhase(shared.full[ring.stage], ring.parity);
      Multiply<false>(sum, shared.x[ring.stage] + x_first, shared.weight[ring.stage] + weight_first,
                      step > 0);
      ProductsWait<1>();
      if (step > 0) Release(shared.empty[last]);
      last = ring.stage;
    }
    ProductsDone(sum);
    Release(shared.empty[last]);
    store(item, place, sum);
  });
}

// What a kernel does, all of it.
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
      InitBarrier(shared.full[stage], 1);
      InitBarrier(shared.empty[stage], kConsumers * kGroupThreads / 32);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers * kGroupThreads) {
    if constexpr (kConsumers == 2) GiveRegisters<40>();
    if (threadIdx.x == kConsumers * kGroupThreads) Produce<kF8>(p, shared);
  } else {
    if constexpr (kConsumers == 2) TakeRegisters<232>();
    AfterPrevious();
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

// The blocks of a kernel whose groups have tiles_n tiles of outputs.
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
