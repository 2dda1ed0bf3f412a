#include "base/check.h"
#include "kernels/cuda/gemm_hopper.h"
#include "kernels/cuda/gemm_hopper_tile.h"

namespace foredraft::cuda {
namespace {

constexpr int kMaxTileN = 128;  // outputs per tile (TileOutputs): at most a block of weight scales

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

template <int kSums>
__device__ __forceinline__ void StoreTile(const HopperGemmParams& p, const GemmItem& item,
                                          const FragmentOrigin& origin, const float (&sum)[kSums]) {
  constexpr int kN = 2 * kSums;
  const int64_t group_column = item.group * p.out_group_stride;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t row = item.first_row + origin.row + 8 * half;
    if (row >= item.end_row) continue;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const int32_t output = item.tile_n * kN + 8 * j + origin.output;
      StoreOutputs(p, row, group_column + output, output, sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]);
    }
  }
}

template <bool kF8, class Tile>
__global__ void __launch_bounds__((Tile::kConsumers + 1) * kGroupThreads, 1)
    HopperGemmKernel(const __grid_constant__ HopperGemmParams p) {
  RunHopperGemm<kF8>(p, SharedStorage<HopperShared<Tile>>(),
                     [&](const GemmItem& item, const FragmentOrigin& origin, const float(&sum)[Tile::kSums]) {
                       StoreTile(p, item, origin, sum);
                     });
}

template <int kConsumers, int kTileN>
void LaunchHopper(Stream& stream, const GemmProblem& q) {
  using Tile = TileShape<kConsumers, kTileN>;
  const int64_t tiles_n = (q.weight.n + Tile::kN - 1) / Tile::kN;
  LaunchShape shape;
  shape.grid = HopperGrid<Tile>(stream, q.ranges, tiles_n);
  shape.block = dim3((kConsumers + 1) * kGroupThreads);
  shape.shared_bytes = sizeof(HopperShared<Tile>);
  const HopperGemmParams params = MakeHopperParams<Tile>(q);
  if (q.weight.dtype == DType::kF8E4M3) {
    Launch(stream, &HopperGemmKernel<true, Tile>, shape, params);
  } else {
    Launch(stream, &HopperGemmKernel<false, Tile>, shape, params);
  }
}

// The widest tile that gives half of an H200's multiprocessors a tile, enough to saturate memory bandwidth.
// Depends on the weight's shape alone.
int TileOutputs(const GemmProblem& q) {
  constexpr int64_t kTilesWanted = 64;
  int outputs = kMaxTileN;
  while (outputs > 16 && int64_t{q.ranges.groups} * ((q.weight.n + outputs - 1) / outputs) < kTilesWanted) {
    outputs /= 2;
  }
  return outputs;
}

}  // namespace

bool HopperSupports(const PackedWeight& weight) {
  return RunsHopperKernels() &&
         weight.k * static_cast<int64_t>(DTypeBytes(weight.dtype)) % kTileRowBytes == 0 && weight.n % 8 == 0;
}

bool TmaCanLoad(Matrix<const bf16> x, int64_t x_group_stride) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0 && x_group_stride % 8 == 0;
}

void HopperGemm(Stream& stream, const GemmProblem& problem, int rows_per_tile, int outputs_per_tile) {
  CHECK_LE(problem.ranges.groups, kMaxGroups);
  CHECK(problem.x_rows == nullptr);
  if (problem.ranges.rows == 0) return;
  // With row counts on the device, the mean decides; the bits are the same.
  const int64_t groups = problem.ranges.offsets != nullptr ? problem.ranges.groups : 1;
  const bool few_rows = problem.ranges.rows <= 64 * groups;
  if (rows_per_tile == 128 || (rows_per_tile == 0 && !few_rows)) {
    LaunchHopper<2, kMaxTileN>(stream, problem);
    return;
  }
  switch (outputs_per_tile == 0 ? TileOutputs(problem) : outputs_per_tile) {
    case 16:
      return LaunchHopper<1, 16>(stream, problem);
    case 32:
      return LaunchHopper<1, 32>(stream, problem);
    case 64:
      return LaunchHopper<1, 64>(stream, problem);
    default:
      return LaunchHopper<1, kMaxTileN>(stream, problem);
  }
}

}  // namespace foredraft::cuda
