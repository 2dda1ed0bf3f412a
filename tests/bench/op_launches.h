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

KernelLaunches LaunchesOf(const EmbedParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const RmsNormParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const GemmParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const HeadGemmParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const AddParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const SiluMulParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const CopyRowsParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const ToBf16Params& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const RopeQueryParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const KvWriteParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const MlaDecodeParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const GatherKvParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const MlaPrefillParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const RouteExpertsParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const GroupRowsParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const GroupedGemmParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const CombineExpertsParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const ExpertPartialsParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const AddPartialsParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const ArgmaxParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const SampleParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const RelaxDraftsParams& p, const CostContext& shape, const GpuModel& gpu);
// DeepSeek-V4's (kernels/ops_v4.h).
KernelLaunches LaunchesOf(const HyperPreParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const HyperPostParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const HyperHeadParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const BroadcastStreamsParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const RotateHeadsParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const WriteKeysParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const CompressParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const SelectEntriesParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const WindowAttentionParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const RouteSoftplusParams& p, const CostContext& shape, const GpuModel& gpu);
KernelLaunches LaunchesOf(const ClampedSiluMulParams& p, const CostContext& shape, const GpuModel& gpu);
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
