#pragma once

// The kernel launches of each op on backend cuda, as launch_model.h describes a launch: which kernels, how
// many blocks, which bytes and products. Tiles, splits and grids come from the functions by which
// kernels/cuda chooses them (gemm_plan.h, mla_decode_load.h, row_blocks.h); the rest must change with the
// kernels.

#include <vector>

#include "tests/bench/launch_model.h"
#include "tests/bench/op_cost.h"

namespace foredraft {

using KernelLaunches = std::vector<KernelLaunch>;

// The launches of every op but the slot ops.
#define OP(name, Stem) \
  KernelLaunches LaunchesOf(const Stem##Params& p, const CostContext& shape, const GpuModel& gpu);
#define SLOT_OP(name, Stem)
#include "kernels/ops/list.inc"
KernelLaunches SlotLaunch(const GpuModel& gpu);
// Slot state: one small kernel.
template <class SlotParams>
KernelLaunches LaunchesOf(const SlotParams&, const CostContext&, const GpuModel& gpu) {
  return SlotLaunch(gpu);
}

// A kernel of blocks of `threads` threads that stream `bytes` in all, each thread two vectors of 16 bytes at
// once, with `round_trips` loads that wait for each other.
KernelLaunch StreamingLaunch(const char* kernel, double blocks, int threads, double bytes, double round_trips,
                             const GpuModel& gpu);
// Before the first load of a kernel that moves rows.
inline constexpr double kRowKernelStart = 0.3e-6;

// The op after a kernel, all its launches one after another.
double OpSeconds(const KernelLaunches& launches, const GpuModel& gpu);

}  // namespace foredraft
