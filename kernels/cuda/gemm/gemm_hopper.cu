#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/attention/rope.h"
#include "kernels/cuda/common/ptx_attention.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "kernels/cuda/gemm/gemm_hopper_launch.h"
#include "kernels/cuda/gemm/gemm_hopper_tile.h"
#include "kernels/cuda/gemm/split_sum.h"

namespace foredraft::cuda {
namespace {

__device__ __forceinline__ void StoreOutputs(const HopperGemmParams& p, int64_t row, int64_t column,
                                             int32_t output, float first, float second) {
  if (output >= p.n) return;
  const bool both = output + 1 < p.n;
  if (p.bias != nullptr) {
    first += p.bias[output];
    if (both) second += p.bias[output + 1];
  }
  if (p.out != nullptr) {
    float* out = p.out + row * p.out_stride + column;
    if (p.pair_stores != 0) {
      *reinterpret_cast<float2*>(out) = make_float2(first, second);
    } else {
      out[0] = first;
      if (both) out[1] = second;
    }
  }
  if (p.out_bf16 != nullptr) {
    bf16* out = p.out_bf16 + row * p.out_bf16_stride + column;
    if (p.pair_stores != 0) {
      *reinterpret_cast<uint32_t*>(out) = ToBf16(first).bits | static_cast<uint32_t>(ToBf16(second).bits)
                                                                   << 16;
    } else {
      out[0] = ToBf16(first);
      if (both) out[1] = ToBf16(second);
    }
  }
}

template <int kAccumulators>
__device__ __forceinline__ void StoreTile(const HopperGemmParams& p, const GemmItem& item,
                                          const FragmentOrigin& origin,
                                          const float (&accumulators)[kAccumulators]) {
  constexpr int kN = 2 * kAccumulators;
  const int64_t group_column = item.group * p.out_group_stride;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t row = item.first_row + origin.row + 8 * half;
    if (row >= item.end_row) continue;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const int32_t output = item.tile_n * kN + 8 * j + origin.output;
      StoreOutputs(p, row, group_column + output, output, accumulators[4 * j + 2 * half],
                   accumulators[4 * j + 2 * half + 1]);
    }
  }
}

// Stores the outputs as queries, with the last rope_dim of each head rotated; a thread has both values of a
// pair. Rows without a slot are not stored.
template <int kAccumulators>
__device__ __forceinline__ void StoreRotated(const HopperGemmParams& p, const GemmItem& item,
                                             const FragmentOrigin& origin,
                                             const float (&accumulators)[kAccumulators]) {
  constexpr int kN = 2 * kAccumulators;
  const int32_t first_output = item.tile_n * kN + origin.output;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t row = item.first_row + origin.row + 8 * half;
    if (row >= item.end_row || p.slots[row] < 0) continue;
    const float* const cos_sin = p.cos_sin + static_cast<int64_t>(p.positions[row]) * p.rope_dim;
    bf16* const out = p.out_bf16 + row * p.out_bf16_stride;
    int32_t column = first_output % p.head_dim - (p.head_dim - p.rope_dim);  // of the head's rotated part
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const int32_t output = first_output + 8 * j;
      if (output >= p.n) break;
      float2 x = make_float2(accumulators[4 * j + 2 * half], accumulators[4 * j + 2 * half + 1]);
      if (p.bias != nullptr) x = make_float2(x.x + p.bias[output], x.y + p.bias[output + 1]);
      if (column >= 0) {
        const float2 angle = *reinterpret_cast<const float2*>(cos_sin + column);
        x = Rotated(x.x, x.y, angle.x, angle.y);
      }
      *reinterpret_cast<uint32_t*>(out + output) = ToBf16(x.x).bits | static_cast<uint32_t>(ToBf16(x.y).bits)
                                                                          << 16;
      column += 8;
      while (column >= p.rope_dim) column -= p.head_dim;
    }
  }
}

template <class Tile>
struct KernelShared {
  HopperShared<Tile> tile;
  int32_t is_last[Tile::kConsumers];  // this block has counted last of the tile's blocks
};

// Whether the tile's kernel has the registers to split k: two groups of 128 outputs do not, and a tree of
// segments takes more.
template <class Tile>
constexpr bool kCanSplit =
    Tile::kSegmented ? Tile::kConsumers == 1 && Tile::kN < 128 : Tile::kConsumers == 1 || Tile::kN < 128;

__device__ __forceinline__ void SyncConsumerGroup(int group) {
  if (group == 0) {
    NamedBarrierSync<kGroupThreads>(1);
  } else {
    NamedBarrierSync<kGroupThreads>(2);
  }
}

// Split k: every block stores its accumulators in memory, and the last one to do so adds up those of all
// splits, ascending or by the tree of segments, in `accumulators`. Returns false in the other blocks. The
// consumer groups of a block are independent.
template <class Tile>
__device__ bool AddSplits(const HopperGemmParams& p, const GemmItem& item, const FragmentOrigin& origin,
                          int32_t (&is_last)[Tile::kConsumers], float (&accumulators)[Tile::kAccumulators]) {
  constexpr int kVectors = Tile::kAccumulators / 4;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int64_t tile = int64_t{item.tile} * Tile::kConsumers + group;
  float4* const parts = p.partials + tile * p.splits * kVectors * kGroupThreads + thread;
  const bool warp_has_rows = item.first_row + origin.row - thread % 32 / 4 < item.end_row;
  if (warp_has_rows) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      __stcg(parts + (item.split * kVectors + i) * kGroupThreads,
             make_float4(accumulators[4 * i], accumulators[4 * i + 1], accumulators[4 * i + 2],
                         accumulators[4 * i + 3]));
    }
  }
  SyncConsumerGroup(group);
  if (thread == 0) is_last[group] = CountSplit(p.counters + tile, p.splits) ? 1 : 0;
  SyncConsumerGroup(group);
  if (is_last[group] == 0) return false;
  if (warp_has_rows) SumSplits<kVectors, 16, Tile::kSegmented>(parts, kGroupThreads, p.splits, accumulators);
  return true;
}

template <bool kF8, class Tile>
__global__ void __launch_bounds__((Tile::kConsumers + 1) * kGroupThreads, 1)
    HopperGemmKernel(const __grid_constant__ HopperGemmParams p) {
  auto& shared = SharedStorage<KernelShared<Tile>>();
  RunHopperGemm<kF8>(
      p, shared.tile,
      [&](const GemmItem& item, const FragmentOrigin& origin, float(&accumulators)[Tile::kAccumulators]) {
        if constexpr (kCanSplit<Tile>) {
          if (p.splits > 1 && !AddSplits<Tile>(p, item, origin, shared.is_last, accumulators)) return;
        }
        if constexpr (!kF8 && Tile::kN == kQuantGroup && !Tile::kSegmented) {
          if (p.out_f8) {
            return StoreQuantizedTile(p.out_f8, item, origin, item.group,
                                      [&](int i) { return accumulators[i]; });
          }
        }
        p.cos_sin != nullptr ? StoreRotated(p, item, origin, accumulators)
                             : StoreTile(p, item, origin, accumulators);
      });
}

template <class Tile>
void LaunchHopper(Stream& stream, const GemmProblem& q, int32_t tile_rows) {
  const int64_t tiles = RowTiles(q.ranges, tile_rows) * ((q.weight.n + Tile::kN - 1) / Tile::kN);
  LaunchShape shape;
  shape.grid = HopperGrid(stream, tiles * q.splits);
  shape.block = dim3((Tile::kConsumers + 1) * kGroupThreads);
  shape.shared_bytes = sizeof(KernelShared<Tile>);
  HopperGemmParams params = MakeHopperParams<Tile>(q, tile_rows);
  params.splits = q.splits;
  CHECK(!Tile::kSegmented || (params.steps % params.segments == 0 && params.segments % q.splits == 0));
  if (q.splits > 1) {
    CHECK(q.partials != nullptr && q.ranges.groups == 1 && q.splits <= kMaxGemmSplits);
    CHECK(kCanSplit<Tile> && q.splits <= params.steps);
    CHECK_LE(tiles * Tile::kConsumers, CudaStream::kZeroCounters);
    params.partials = static_cast<float4*>(q.partials);
    params.counters = static_cast<CudaStream&>(stream).ZeroCounters();
  } else if (Tile::kSegmented && DeviceWaitingBytes(Tile::kRows, Tile::kN) > 0) {
    CHECK(q.partials != nullptr);
    params.waiting = static_cast<float4*>(q.partials);
  }
  if (q.weight.format.code == DType::kF8E4M3) {
    Launch(stream, &HopperGemmKernel<true, Tile>, shape, params);
  } else {
    Launch(stream, &HopperGemmKernel<false, Tile>, shape, params);
  }
}

template <int kConsumers, int kTileN>
void LaunchWidth(Stream& stream, const GemmProblem& q, int32_t tile_rows) {
  if (q.weight.segments > 1) {
    LaunchHopper<TileShape<kConsumers, kTileN, false, 0, /*segmented=*/true>>(stream, q, tile_rows);
  } else {
    LaunchHopper<TileShape<kConsumers, kTileN>>(stream, q, tile_rows);
  }
}

template <int kConsumers>
void LaunchOfWidth(Stream& stream, const GemmProblem& q, GemmTile tile) {
  switch (tile.outputs) {
    case 16:
      return LaunchWidth<kConsumers, 16>(stream, q, tile.rows);
    case 32:
      return LaunchWidth<kConsumers, 32>(stream, q, tile.rows);
    case 64:
      return LaunchWidth<kConsumers, 64>(stream, q, tile.rows);
    default:
      CHECK_EQ(tile.outputs, 128);  // a block of weight scales
      return LaunchWidth<kConsumers, 128>(stream, q, tile.rows);
  }
}

// The most rows that split k computes at a time, which bounds the partial sums and counters.
constexpr int32_t kSplitRowsAtOnce = 1024;

GemmTile TileOf(Stream& stream, const GemmProblem& q) {
  GemmSize size = SizeOf(q);
  if (q.splits > 1) size.rows = std::min(size.rows, kSplitRowsAtOnce);
  return PlanGemm(size, q.splits, RatesOf(stream), q.out_f8 ? kQuantGroup : 0).tile;
}

}  // namespace

bool HopperSupports(const PackedWeight& weight) {
  const int64_t row_bytes = weight.k * static_cast<int64_t>(DTypeBytes(weight.format.code));
  return RunsHopperKernels() && !Is4Bit(weight.format) &&
         row_bytes % (int64_t{std::max(weight.segments, 1)} * kTileRowBytes) == 0 && weight.plan_n() % 8 == 0;
}

bool TmaCanLoad(Matrix<const bf16> x, int64_t x_group_stride) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0 && x_group_stride % 8 == 0;
}

GemmSize SizeOf(const GemmProblem& q) {
  const bool ragged = q.ranges.offsets != nullptr;
  return {.n = q.weight.n,
          .k = q.weight.k,
          .element_bytes = static_cast<int32_t>(DTypeBytes(q.weight.format.code)),
          .rows = ragged && q.expected_rows > 0 ? q.expected_rows : q.ranges.rows,
          .groups = q.ranges.groups,
          .ragged = ragged,
          .format = q.weight.format,
          .segments = std::max(q.weight.segments, 1)};
}

GemmRates RatesOf(Stream& stream) {
  GemmRates rates;
  rates.multiprocessors = static_cast<CudaStream&>(stream).multiprocessor_count();
  return rates;
}

int64_t HopperPartialBytes(Stream& stream, const GemmProblem& q, GemmTile tile) {
  if (q.splits == 1 && q.weight.segments <= 1) return 0;
  if (tile.rows == 0) tile = TileOf(stream, q);
  const int32_t kernel_rows = tile.rows > 64 ? 128 : 64;
  if (q.splits == 1) {
    const int64_t blocks = RatesOf(stream).multiprocessors;
    return blocks * DeviceWaitingBytes(kernel_rows, tile.outputs);
  }
  GroupRowRanges rows = q.ranges;
  rows.rows = std::min(rows.rows, kSplitRowsAtOnce);
  const int64_t tile_floats = kernel_rows * tile.outputs;
  const int64_t tiles = RowTiles(rows, tile.rows) * ((q.weight.n + tile.outputs - 1) / tile.outputs);
  return tiles * q.splits * tile_floats * static_cast<int64_t>(sizeof(float));
}

void HopperGemm(Stream& stream, const GemmProblem& problem, GemmTile tile) {
  CHECK_LE(problem.ranges.groups, kMaxGroups);
  CHECK(problem.x_rows == nullptr);
  const int32_t rows = problem.ranges.rows;
  if (rows == 0) return;
  if (tile.rows == 0) tile = TileOf(stream, problem);
  if (problem.splits > 1 && rows > kSplitRowsAtOnce) {
    for (int32_t first = 0; first < rows; first += kSplitRowsAtOnce) {
      HopperGemm(stream, RowRange(problem, first, std::min(kSplitRowsAtOnce, rows - first)), tile);
    }
  } else if (tile.rows > 64) {
    LaunchOfWidth<2>(stream, problem, tile);
  } else {
    LaunchOfWidth<1>(stream, problem, tile);
  }
}

}  // namespace foredraft::cuda
