// What the cost model (tests/bench/launch_model.h) takes for granted about a GPU, measured in seconds: the
// time from one kernel to the next, latencies, what one multiprocessor takes from L2, and a round of a
// counter that blocks share.

#include "tests/gpu/probe.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/common/ptx_hopper.h"

namespace foredraft::cuda {
namespace {

struct NothingParams {
  int32_t unused;
};
__global__ void Nothing(const __grid_constant__ NothingParams) { GridDependencySync(); }

double KernelSeconds(bool pdl) {
  OpRig rig({.pdl = pdl}, RunMode::kEager);
  return SecondsOf(rig, &Nothing, OneBlock(128), NothingParams{0}, /*max_calls=*/200);
}

// Kernels that do nothing, one after another in a graph.
TEST(Probe, FromKernelToKernel) {
  OpRig rig({}, RunMode::kEager);
  const GpuModel& model = Model(rig.device());
  Print("kernel to kernel, programmatic", KernelSeconds(true) * 1e6, "us", model.follow_seconds * 1e6);
  Print("kernel to kernel, by an edge", KernelSeconds(false) * 1e6, "us", model.edge_seconds * 1e6);
}

struct ChaseParams {
  const int32_t* next;
  int32_t* out;
  int32_t rounds;  // loads
};
// One thread, each load of which needs the one before.
__global__ void Chase(const __grid_constant__ ChaseParams p) {
  GridDependencySync();
  int32_t at = 0;
  for (int32_t i = 0; i < p.rounds; ++i) at = __ldcg(p.next + at);
  *p.out = at;
}

// What a load takes from `bytes` of memory, whose lines are read in a random order.
double LoadSeconds(size_t bytes, int32_t loads) {
  constexpr size_t kLine = 128 / sizeof(int32_t);
  OpRig rig({}, RunMode::kEager);
  const size_t lines = bytes / 128;
  std::vector<size_t> order(lines);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin() + 1, order.end(), std::mt19937(7));
  std::vector<int32_t> next(lines * kLine);
  for (size_t i = 0; i < lines; ++i) {
    next[order[i] * kLine] = static_cast<int32_t>(order[(i + 1) % lines] * kLine);
  }
  const ChaseParams params = {.next = rig.Put(next), .out = rig.Poisoned<int32_t>(1), .rounds = 0};
  return SecondsOfRound(rig, &Chase, OneBlock(1), params, loads);
}

TEST(Probe, LatenciesOfLoads) {
  OpRig rig({}, RunMode::kEager);
  const bool emulated = IsEmulated(rig.device());
  const double latency = Model(rig.device()).memory_latency;  // under load; here nothing else loads
  // From memory the loads reach more than L2 holds before they begin again: 77 MB of lines.
  Print("load from L2", LoadSeconds(emulated ? 1 << 16 : 8 << 20, emulated ? 20000 : 4000) * 1e6, "us",
        latency / 2 * 1e6);
  Print("load from memory", LoadSeconds(emulated ? 1 << 20 : 512 << 20, emulated ? 20000 : 600000) * 1e6,
        "us", latency * 1e6);
}

struct ReadParams {
  const uint4* from;
  uint32_t* out;
  int32_t vectors, rounds;
};
// One block, four loads of 16 bytes of each thread in flight.
__global__ void __launch_bounds__(1024) Read(const __grid_constant__ ReadParams p) {
  GridDependencySync();
  uint32_t sum = 0;
  for (int32_t round = 0; round < p.rounds; ++round) {
    for (int32_t first = static_cast<int32_t>(threadIdx.x); first < p.vectors; first += 4 * 1024) {
      uint4 values[4];
      for (int i = 0; i < 4; ++i) values[i] = __ldcg(p.from + first + i * 1024);
      for (int i = 0; i < 4; ++i) sum += values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
    }
  }
  if (sum == 0x12345) *p.out = sum;  // keeps the loads
}

TEST(Probe, RateOfOneMultiprocessor) {
  OpRig rig({}, RunMode::kEager);
  const bool emulated = IsEmulated(rig.device());
  ReadParams params = {.vectors = emulated ? 4096 : 256 * 1024};  // 4 MB
  params.from = rig.Put(std::vector<uint4>(params.vectors));
  params.out = rig.Poisoned<uint32_t>(1);
  const double bytes = double(params.vectors) * sizeof(uint4);
  Print("one multiprocessor from L2", bytes / SecondsOfRound(rig, &Read, OneBlock(1024), params, 8) * 1e-9,
        "GB/s", Model(rig.device()).multiprocessor_rate * 1e-9);
}

struct CountParams {
  uint32_t* counter;
  int32_t rounds;
};
// As CountSplit (kernels/cuda/gemm/split_sum.h), over and over.
__global__ void Count(const __grid_constant__ CountParams p) {
  GridDependencySync();
  for (int32_t round = 0; round < p.rounds; ++round) {
    FenceGpu();
    atomicAdd(p.counter, 1u);
    FenceGpu();
  }
}

TEST(Probe, ACounterOfBlocks) {
  OpRig rig({}, RunMode::kEager);
  const CountParams params = {.counter = rig.Put(std::vector<uint32_t>(1, 0)), .rounds = 0};
  constexpr double kExchange = 1.8;  // as kernels/cuda/gemm/gemm_plan.cc takes it, with a store and a load
  Print("fence, count, fence", SecondsOfRound(rig, &Count, OneBlock(1), params, 20000) * 1e6, "us",
        kExchange);
}

}  // namespace
}  // namespace foredraft::cuda
