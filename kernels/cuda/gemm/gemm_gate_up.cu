#include "base/check.h"
#include "kernels/cuda/common/ptx_attention.h"
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
constexpr int kAccumulators = kTileN / 2;
using ExchangedAccumulators = float[kAccumulators][kGroupThreads];
using Tile = TileShape<2, kTileN, /*pair=*/true, sizeof(ExchangedAccumulators)>;

struct GateUpParams {
  HopperGemmParams gemm;  // n: of gate alone
  QuantizedRows out;
  float limit;
};

struct GateUpShared {
  HopperShared<Tile> tile;
  ExchangedAccumulators up;
};

// The second warpgroup passes its accumulators to the first through shared memory.
__global__ void __launch_bounds__(3 * kGroupThreads, 1) GateUpKernel(const __grid_constant__ GateUpParams p) {
  auto& shared = SharedStorage<GateUpShared>();
  RunHopperGemm<true>(
      p.gemm, shared.tile,
      [&](const GemmItem& item, const FragmentOrigin& origin, const float(&accumulators)[kAccumulators]) {
        if (threadIdx.x >= kGroupThreads) {
#pragma unroll
          for (int i = 0; i < kAccumulators; ++i) shared.up[i][threadIdx.x - kGroupThreads] = accumulators[i];
        }
        NamedBarrierSync<kPairThreads>(1);
        if (threadIdx.x < kGroupThreads) {
          StoreQuantizedTile(p.out, item, origin, item.tile_n, [&](int i) {
            return GatedSilu(accumulators[i], shared.up[i][threadIdx.x], p.limit);
          });
        }
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
