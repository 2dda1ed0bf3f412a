#include "base/check.h"
#include "kernels/cuda/common/ptx_attention.h"
#include "kernels/cuda/dense/quantize_vec4.h"
#include "kernels/cuda/gemm/gemm_gate_up.h"
#include "kernels/cuda/gemm/gemm_hopper.h"
#include "kernels/cuda/gemm/gemm_hopper_launch.h"
#include "kernels/cuda/gemm/gemm_hopper_tile.h"
#include "kernels/dtype.h"
#include "kernels/exp.h"

namespace foredraft::cuda {
namespace {

constexpr int kTileN = kQuantGroup;  // of gate and of up: one scale group of the output
constexpr int kPairThreads = 2 * kGroupThreads;
constexpr int kSums = kTileN / 2;
using ExchangedSums = float[kSums][kGroupThreads];
using Tile = TileShape<2, kTileN, /*pair=*/true, sizeof(ExchangedSums)>;

struct GateUpParams {
  HopperGemmParams gemm;  // n: of gate alone
  QuantizedRows out;
  float limit;
};

struct GateUpShared {
  HopperShared<Tile> tile;
  ExchangedSums up;
};

// Four lanes have a row of the tile, 32 columns each.
__device__ __forceinline__ void StoreActivated(const GateUpParams& p, const GemmItem& item,
                                               const FragmentOrigin& origin, const float (&gate)[kSums],
                                               const ExchangedSums& up) {
  const QuantizedRows& out = p.out;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float values[kSums / 2];
    float amax = kSmallestAmax;
#pragma unroll
    for (int j = 0; j < kSums / 2; ++j) {
      const int sum = j / 2 * 4 + 2 * half + j % 2;
      values[j] = ToFloat(ToBf16(GatedSilu(gate[sum], up[sum][thread], p.limit)));
      amax = fmaxf(amax, fabsf(values[j]));
    }
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
    const int32_t row = item.first_row + origin.row + 8 * half;
    if (row >= item.end_row) continue;
    const QuantScale scale(amax);
    uint8_t* const codes = out.codes + row * out.pitch + item.tile_n * kTileN + origin.output;
#pragma unroll
    for (int j = 0; j < kSums / 2; j += 2) {
      const uint32_t pair = scale.Code(values[j]) | scale.Code(values[j + 1]) << 8;
      *reinterpret_cast<uint16_t*>(codes + j * 4) = static_cast<uint16_t>(pair);
    }
    if (origin.output == 0) out.scales[item.tile_n * out.scale_pitch + row] = scale.scale();
  }
}

// The second warpgroup passes its sums to the first through shared memory.
__global__ void __launch_bounds__(3 * kGroupThreads, 1) GateUpKernel(const __grid_constant__ GateUpParams p) {
  auto& shared = SharedStorage<GateUpShared>();
  RunHopperGemm<true>(p.gemm, shared.tile,
                      [&](const GemmItem& item, const FragmentOrigin& origin, const float(&sum)[kSums]) {
                        if (threadIdx.x >= kGroupThreads) {
#pragma unroll
                          for (int i = 0; i < kSums; ++i) shared.up[i][threadIdx.x - kGroupThreads] = sum[i];
                        }
                        NamedBarrierSync<kPairThreads>(1);
                        if (threadIdx.x < kGroupThreads) StoreActivated(p, item, origin, sum, shared.up);
                        NamedBarrierSync<kPairThreads>(1);  // `up` is read before the next item writes it
                      });
}

}  // namespace

bool GateUpSupports(const PackedWeight& weight) {
  return weight.format.code == DType::kF8E4M3 && HopperSupports(weight) && weight.n % (2 * kTileN) == 0;
}

void GateUpGemm(Stream& stream, const GemmProblem& problem, const QuantizedRows& out, float limit,
                int32_t tile_rows) {
  CHECK_LE(problem.ranges.groups, kMaxGroups);
  CHECK(GateUpSupports(problem.weight));
  if (problem.ranges.rows == 0) return;
  if (tile_rows == 0) tile_rows = PlanGateUp(SizeOf(problem), RatesOf(stream)).tile.rows;
  GateUpParams params = {.gemm = MakeHopperParams<Tile>(problem, tile_rows), .out = out, .limit = limit};
  params.gemm.n = problem.weight.n / 2;
  const int64_t items = RowTiles(problem.ranges, tile_rows) * (params.gemm.n / kTileN);
  const LaunchShape shape = {.grid = HopperGrid(stream, items),
                             .block = dim3(3 * kGroupThreads),
                             .shared_bytes = sizeof(GateUpShared)};
  Launch(stream, GateUpKernel, shape, params);
}

}  // namespace foredraft::cuda
