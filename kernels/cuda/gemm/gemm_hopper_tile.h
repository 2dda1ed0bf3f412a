#pragma once

// The mainloop of the GEMM kernels for Hopper (gemm_hopper.cu, gemm_gate_up.cu): a warpgroup whose threads
// load, consumer warpgroups, and the pipeline between them. The kernels supply the epilogue.

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/common/pipeline_state.h"
#include "kernels/cuda/common/ptx_hopper.h"
#include "kernels/cuda/dense/quantize_vec4.h"
#include "kernels/cuda/gemm/gemm_item_search.h"
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/gemm/gemm_tile.h"
#include "kernels/cuda/gemm/packed_weight.h"
#include "kernels/cuda/gemm/segment_sums.h"

namespace foredraft::cuda {

inline constexpr int kGroupThreads = 128;
inline constexpr int kWgmmasPerStage = kTileRowBytes / 32;
inline constexpr int kScalesPerLoad = 4;  // weight scales of adjacent k blocks, copied together
inline constexpr uint32_t kScaleLoadBytes = kScalesPerLoad * sizeof(float);

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
  int32_t steps;         // k tiles of 128 bytes
  int32_t splits;        // of the steps; each is an item of its own
  int32_t segments;      // of the steps; a split has some of them
  int32_t tile_rows;     // of x per tile, at most the kernel's
  int32_t box_rows;      // of x that are loaded per tile: no more than x has, since TMA is slow past them
  int32_t scale_rows;    // whose scales are loaded per tile; FP8
  int32_t x_grouped;     // 1: group g reads matrix g of x; 0: all groups read matrix 0
  int32_t pair_stores;   // 1: outputs 2 i and 2 i + 1 of a row can be stored together
  float4* partials;      // splits > 1: [tiles, consumer groups, splits, accumulators of a thread / 4, 128]
  uint32_t* counters;    // splits > 1: [tiles, consumer groups], zero
  float4* waiting;       // [blocks] accumulators of segments that wait in device memory
  QuantizedRows out_f8;  // GemmProblem::out_f8
  // How to rotate the outputs in out_bf16, as queries (RopeQueryParams); null: not rotated.
  const float* cos_sin;
  const int32_t* slots;
  const int32_t* positions;
  int32_t head_dim;
  int32_t rope_dim;
  GroupRowRanges ranges;
};

// The tile of a block: each consumer warpgroup has 64 rows by tile_n outputs. The groups have the same
// outputs of different rows; or, with `pair`, the same rows, and the second group the outputs p.n further.
// `other_bytes`: shared memory needed besides the stages. `segmented`: k has more than one segment.
template <int consumers, int tile_n, bool pair = false, int other_bytes = 0, bool segmented = false>
struct TileShape {
  static constexpr bool kSegmented = segmented;
  static constexpr int kWaitingBytes = segmented ? SharedWaitingBytes(64 * consumers, tile_n) : 0;
  static constexpr int kConsumers = consumers;
  static constexpr bool kPair = pair;
  static constexpr int kRows = pair ? 64 : 64 * kConsumers;
  static constexpr int kN = tile_n;
  static constexpr int kWeightRows = pair ? consumers * kN : kN;
  static constexpr int kAccumulators = kN / 2;  // of a thread
  // Narrow tiles get more stages, so that enough bytes are in flight to hide memory latency.
  static constexpr int kStages =
      (kGemmSharedBudget - other_bytes - kWaitingBytes) / GemmStageBytes(kRows, kWeightRows);
};

template <class Tile>
struct HopperShared {
  static constexpr int kStages = Tile::kStages;
  alignas(1024) unsigned char x[kStages][Tile::kRows * kTileRowBytes];
  alignas(1024) unsigned char weight[kStages][Tile::kWeightRows * kTileRowBytes];
  alignas(128) float x_scales[kStages][ScaleRows(Tile::kRows)];
  alignas(16) float weight_scales[kStages][Tile::kPair ? 2 : 1][kScalesPerLoad];
  float4 waiting[Tile::kWaitingBytes > 0 ? Tile::kWaitingBytes / 16 : 1];
  Mbarrier full[kStages];   // the stage's bytes have arrived
  Mbarrier empty[kStages];  // all consumer warps have released the stage
  int32_t tile_starts[kMaxGroups + 1];
};

// The k tiles of an item: [first, end).
struct StepRange {
  int32_t first;
  int32_t end;

  __device__ StepRange(int32_t first_step, int32_t end_step) : first(first_step), end(end_step) {}
  __device__ StepRange(const HopperGemmParams& p, const GemmItem& item)
      : first(item.split * p.steps / p.splits), end((item.split + 1) * p.steps / p.splits) {}
};

// The scales of output tile `tile_n` of a consumer group, one per k tile.
template <class Tile>
__device__ __forceinline__ const float* WeightScales(const HopperGemmParams& p, const GemmItem& item,
                                                     int consumer_group) {
  const int64_t row = (item.tile_n * Tile::kN + consumer_group * p.n) / kScaleBlock;
  return p.weight_scales + item.group * p.weight_scale_stride + row * p.weight_scale_pitch;
}

// Calls visit(item) for this block's items; the order is the same in every thread.
template <class Tile, class Visit>
__device__ __forceinline__ void ForItems(const HopperGemmParams& p, const int32_t* tile_starts,
                                         const Visit& visit) {
  const int32_t n_tiles = (p.n + Tile::kN - 1) / Tile::kN;
  const uint32_t items = tile_starts[p.ranges.groups] * n_tiles * p.splits;
  for (uint32_t index = blockIdx.x; index < items; index += gridDim.x) {
    visit(FindItem(p.ranges, tile_starts, p.tile_rows, n_tiles, p.splits, index));
  }
}

// Bytes that a stage's mbarrier counts.
template <bool kF8, class Tile>
__device__ __forceinline__ uint32_t StageBytes(const HopperGemmParams& p) {
  uint32_t bytes = (p.box_rows + Tile::kWeightRows) * kTileRowBytes;
  if constexpr (kF8) {
    bytes += p.scale_rows * static_cast<uint32_t>(sizeof(float)) + (Tile::kPair ? 2 : 1) * kScaleLoadBytes;
  }
  return bytes;
}

// Calls load(stage, item, step) for every k tile of the block's items, once its stage is free.
template <class Tile, class Load>
__device__ __forceinline__ void ForStages(const HopperGemmParams& p, HopperShared<Tile>& shared,
                                          const Load& load) {
  PipelineState<Tile::kStages> pipeline;
  ForItems<Tile>(p, shared.tile_starts, [&](const GemmItem& item) {
    const StepRange steps(p, item);
    for (int32_t step = steps.first; step < steps.end; ++step, pipeline.Next()) {
      MbarrierWait(shared.empty[pipeline.stage], pipeline.parity ^ 1, "gemm stage empty");
      load(pipeline.stage, item, step);
    }
  });
}

// No kernel writes weights, so their loaders do not wait for the previous kernel. (If the items depend on its
// output, RunHopperGemm has waited.)
template <bool kF8, class Tile>
__device__ void LoadWeights(const HopperGemmParams& p, HopperShared<Tile>& shared) {
  constexpr int kStepInputs = kF8 ? kTileRowBytes : kTileRowBytes / 2;
  const uint32_t bytes = StageBytes<kF8, Tile>(p);
  const uint64_t policy = CachePolicy<CacheHint::kEvictFirst>();  // read once
  ForStages<Tile>(p, shared, [&](int stage, const GemmItem& item, int32_t step) {
    const int32_t output = item.tile_n * Tile::kN;
    MbarrierArriveExpectTx(shared.full[stage], bytes);
    TmaLoad(shared.weight[stage], p.weight, step * kStepInputs, output, item.group, shared.full[stage],
            policy);
    if constexpr (Tile::kPair) {
      TmaLoad(shared.weight[stage] + Tile::kN * kTileRowBytes, p.weight, step * kStepInputs, p.n + output,
              item.group, shared.full[stage], policy);
    }
  });
}

template <class Tile>
__device__ void LoadWeightScales(const HopperGemmParams& p, HopperShared<Tile>& shared) {
  const uint64_t policy = CachePolicy<CacheHint::kEvictFirst>();
  ForStages<Tile>(p, shared, [&](int stage, const GemmItem& item, int32_t step) {
#pragma unroll
    for (int row = 0; row < (Tile::kPair ? 2 : 1); ++row) {
      BulkLoad(shared.weight_scales[stage][row],
               WeightScales<Tile>(p, item, row) + step / kScalesPerLoad * kScalesPerLoad, kScaleLoadBytes,
               shared.full[stage], policy);
    }
  });
}

template <bool kF8, class Tile>
__device__ void LoadRows(const HopperGemmParams& p, HopperShared<Tile>& shared) {
  constexpr int kStepInputs = kF8 ? kTileRowBytes : kTileRowBytes / 2;
  const uint64_t policy = CachePolicy<CacheHint::kEvictLast>();  // read by many blocks
  GridDependencyWait();
  ForStages<Tile>(p, shared, [&](int stage, const GemmItem& item, int32_t step) {
    TmaLoad(shared.x[stage], p.x, step * kStepInputs, p.x_grouped != 0 ? item.group : 0, item.first_row,
            shared.full[stage], policy);
  });
}

template <class Tile>
__device__ void LoadRowScales(const HopperGemmParams& p, HopperShared<Tile>& shared) {
  const uint64_t policy = CachePolicy<CacheHint::kEvictLast>();
  GridDependencyWait();
  ForStages<Tile>(p, shared, [&](int stage, const GemmItem& item, int32_t step) {
    TmaLoad(shared.x_scales[stage], p.x_scales, item.first_row / kScaleAlignment * kScaleAlignment, step, 0,
            shared.full[stage], policy);
  });
}

// Each operand of a stage has a warp of its own, whose first thread requests it: a request has the latency of
// some 40 instructions, so one thread for all requests would not keep up with memory. The warp of the weights
// also announces the bytes of all operands; the other operands may arrive before it does.
template <bool kF8, class Tile>
__device__ __forceinline__ void Produce(const HopperGemmParams& p, HopperShared<Tile>& shared) {
  if (threadIdx.x % 32 != 0) return;
  const int loader = static_cast<int>(threadIdx.x) / 32 - Tile::kConsumers * kGroupThreads / 32;
  if (loader == 0) {
    LoadWeights<kF8>(p, shared);
  } else if (loader == 1) {
    LoadRows<kF8>(p, shared);
  } else if constexpr (kF8) {
    if (loader == 2) {
      LoadRowScales(p, shared);
    } else {
      LoadWeightScales(p, shared);
    }
  }
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

// Stores the rows of a tile with 128 outputs as scale group `group` of `out`. Four lanes have a row, 32
// columns each. value(i): the value for accumulator i, before it is rounded to BF16.
template <class Value>
__device__ __forceinline__ void StoreQuantizedTile(const QuantizedRows& out, const GemmItem& item,
                                                   const FragmentOrigin& origin, int32_t group,
                                                   const Value& value) {
  constexpr int kValues = kQuantGroup / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float values[kValues];
    float amax = kSmallestAmax;
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      values[j] = ToFloat(ToBf16(value(j / 2 * 4 + 2 * half + j % 2)));
      amax = fmaxf(amax, fabsf(values[j]));
    }
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
    const int32_t row = item.first_row + origin.row + 8 * half;
    if (row >= item.end_row) continue;
    const QuantScale scale(amax);
    uint8_t* const codes = out.codes + row * out.pitch + group * kQuantGroup + origin.output;
#pragma unroll
    for (int j = 0; j < kValues; j += 2) {
      const uint32_t pair = scale.Code(values[j]) | scale.Code(values[j + 1]) << 8;
      *reinterpret_cast<uint16_t*>(codes + j * 4) = static_cast<uint16_t>(pair);
    }
    if (origin.output == 0) out.scales[group * out.scale_pitch + row] = scale.scale();
  }
}

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

// Issues one stage's wgmmas into `d`, which starts from zero unless `add`.
template <bool kF8, int kAccumulators>
__device__ __forceinline__ void Multiply(float (&d)[kAccumulators], const unsigned char* x,
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

// The FP8 product of one stage, before or after its wgmmas have ended.
template <int kAccumulators>
struct F8Block {
  float accumulators[kAccumulators];
  float scale[2];  // of the thread's two rows, times the weight's
  int stage;
};

template <class Tile>
struct F8Consumer {
  HopperShared<Tile>& shared;
  const FragmentOrigin origin{Tile::kRows};
  const GroupOffsets<Tile> offsets{};
  PipelineState<Tile::kStages> pipeline{};
  int32_t scale_row = 0;  // of the thread's first row, among the loaded scales

  // Issues the product of the next stage, whose k tile is `step`.
  __device__ __forceinline__ void Start(F8Block<Tile::kAccumulators>& block, int32_t step) {
    const int stage = block.stage = pipeline.stage;
    MbarrierWait(shared.full[stage], pipeline.parity, "gemm stage full");
    const float weight_scale =
        shared.weight_scales[stage][Tile::kPair ? offsets.group : 0][step % kScalesPerLoad];
    block.scale[0] = __fmul_rn(shared.x_scales[stage][scale_row], weight_scale);
    block.scale[1] = __fmul_rn(shared.x_scales[stage][scale_row + 8], weight_scale);
    Multiply<true>(block.accumulators, shared.x[stage] + offsets.x, shared.weight[stage] + offsets.weight,
                   false);
    pipeline.Next();
  }

  // Called after the wait for the product.
  __device__ __forceinline__ void Promote(const F8Block<Tile::kAccumulators>& block,
                                          float (&accumulators)[Tile::kAccumulators]) {
    ReleaseStage(shared.empty[block.stage]);
#pragma unroll
    for (int i = 0; i < Tile::kAccumulators; ++i)
      accumulators[i] = fmaf(block.scale[i / 2 % 2], block.accumulators[i], accumulators[i]);
  }

  // accumulators += the products of `steps`. If `overlapped`, one stage's product runs while the one before
  // it is promoted, which takes twice the registers. The order of the additions is the same.
  template <bool overlapped>
  __device__ __forceinline__ void Sum(const StepRange& steps, float (&accumulators)[Tile::kAccumulators]) {
    F8Block<Tile::kAccumulators> even;
    if constexpr (!overlapped) {
      for (int32_t step = steps.first; step < steps.end; ++step) {
        Start(even, step);
        WarpgroupWaitAll(even.accumulators);
        Promote(even, accumulators);
      }
      return;
    }
    F8Block<Tile::kAccumulators> odd;
    int32_t step = steps.first;
    Start(even, step);
    while (true) {
      if (++step == steps.end) {
        WarpgroupWaitAll(even.accumulators);
        return Promote(even, accumulators);
      }
      Start(odd, step);
      WarpgroupWaitAllButOne(even.accumulators);
      Promote(even, accumulators);
      if (++step == steps.end) {
        WarpgroupWaitAll(odd.accumulators);
        return Promote(odd, accumulators);
      }
      Start(even, step);
      WarpgroupWaitAllButOne(odd.accumulators);
      Promote(odd, accumulators);
    }
  }
};

template <int kAccumulators>
__device__ __forceinline__ void Clear(float (&accumulators)[kAccumulators]) {
#pragma unroll
  for (float& value : accumulators) value = 0.0f;
}

// accumulators = the products of an item. sum_up(steps) writes those of a chain.
template <class Tile, class SumUp>
__device__ __forceinline__ void SumItem(const HopperGemmParams& p, HopperShared<Tile>& shared,
                                        const GemmItem& item, float (&accumulators)[Tile::kAccumulators],
                                        const SumUp& sum_up) {
  const StepRange steps(p, item);
  if constexpr (!Tile::kSegmented) {
    sum_up(steps);
  } else {
    constexpr int kThreads = Tile::kConsumers * kGroupThreads;
    constexpr int kNear = SetsInShared(Tile::kN);
    constexpr int kFarBytes = DeviceWaitingBytes(Tile::kRows, Tile::kN);
    WaitingSums<Tile::kAccumulators, kNear> waiting(
        shared.waiting, p.waiting + int64_t{blockIdx.x} * (kFarBytes / 16), kThreads);
    const int32_t count = p.segments / p.splits, length = p.steps / p.segments;
    for (int32_t index = 0; index < count; ++index) {
      const int32_t first = steps.first + index * length;
      sum_up(StepRange(first, first + length));
      AddSegment(index, count, waiting, accumulators);
    }
  }
}

// The epilogue store(item, origin, accumulators) receives this thread's accumulators of an item.
template <class Tile, class Store>
__device__ void ConsumeF8(const HopperGemmParams& p, HopperShared<Tile>& shared, const Store& store) {
  // Two groups with 128 outputs each have no registers to spare; one multiplies while the other promotes.
  constexpr bool kOverlapped = Tile::kConsumers == 1 || Tile::kAccumulators <= 32;
  F8Consumer<Tile> consumer{shared};
  ForItems<Tile>(p, shared.tile_starts, [&](const GemmItem& item) {
    float accumulators[Tile::kAccumulators];
    consumer.scale_row = consumer.origin.row + item.first_row % kScaleAlignment;
    SumItem<Tile>(p, shared, item, accumulators, [&](const StepRange& steps) {
      Clear(accumulators);
      consumer.template Sum<kOverlapped>(steps, accumulators);
    });
    store(item, consumer.origin, accumulators);
  });
}

template <class Tile, class Store>
__device__ void ConsumeBf16(const HopperGemmParams& p, HopperShared<Tile>& shared, const Store& store) {
  const FragmentOrigin origin(Tile::kRows);
  const GroupOffsets<Tile> offsets;
  PipelineState<Tile::kStages> pipeline;
  ForItems<Tile>(p, shared.tile_starts, [&](const GemmItem& item) {
    float accumulators[Tile::kAccumulators];
    SumItem<Tile>(p, shared, item, accumulators, [&](const StepRange& steps) {
      // wgmma does not begin with the previous segment's accumulators. The assembler does not know this
      // unless they are cleared, and would serialise the wgmmas.
      if constexpr (Tile::kSegmented) Clear(accumulators);
      int last = 0;  // the stage whose wgmmas may be in flight
      for (int32_t step = steps.first; step < steps.end; ++step, pipeline.Next()) {
        MbarrierWait(shared.full[pipeline.stage], pipeline.parity, "gemm stage full");
        Multiply<false>(accumulators, shared.x[pipeline.stage] + offsets.x,
                        shared.weight[pipeline.stage] + offsets.weight, step > steps.first);
        WarpgroupWait<1>();
        if (step > steps.first) ReleaseStage(shared.empty[last]);
        last = pipeline.stage;
      }
      WarpgroupWaitAll(accumulators);
      ReleaseStage(shared.empty[last]);
    });
    store(item, origin, accumulators);
  });
}

// The whole kernel.
template <bool kF8, class Tile, class Store>
__device__ __forceinline__ void RunHopperGemm(const HopperGemmParams& p, HopperShared<Tile>& shared,
                                              const Store& store) {
  constexpr int kConsumers = Tile::kConsumers;
  if (p.ranges.offsets != nullptr) GridDependencyWait();
  if (threadIdx.x < 32) FillTileStarts(p.ranges, p.tile_rows, shared.tile_starts);
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
    Produce<kF8>(p, shared);
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

}  // namespace foredraft::cuda
