#pragma once

// The least that an op must move and compute, by its parameters: every input read once, every output written
// once, no reuse between ops. The roofline is this cost divided by the measured rates of the device.

#include <cstdint>

#include "kernels/ops.h"

namespace foredraft {

struct OpCost {
  double bytes = 0;
  double stored_bytes = 0;  // of these: weights and cached keys, which come from memory at every step
  double bf16_flops = 0;    // of matrix units, by the weight's dtype
  double fp8_flops = 0;

  OpCost& operator+=(const OpCost& other);
};

struct DeviceRates {
  double bytes_per_second = 0;
  double bf16_flops = 0;  // per second
  double fp8_flops = 0;
};

// Memory traffic and products overlap; BF16 and FP8 products do not overlap each other.
double RooflineSeconds(const OpCost& cost, const DeviceRates& rates);

// What the cost of an op depends on besides the parameters that the host can read.
struct CostContext {
  int32_t context = 0;            // positions that a decode row attends
  int32_t rows_per_sequence = 1;  // these rows share one read of their keys
  bool host_arrays = false;       // the host may read the arrays: counts the experts that have rows
  int32_t expert_ranks = 1;       // ranks whose experts share the (row, choice) pairs evenly
  int32_t met_experts = 0;        // experts that have rows; 0: as many as uniform choices meet
  bool sampled = false;           // rows are drawn, not greedy
  bool filtered = false;          // sampled rows have top-k or top-p
};

// How many experts have rows. The arrays are in host memory.
int32_t MetExperts(const GroupedGemmParams& p);

// How many of `experts` experts have rows if `pairs` pairs are theirs: as `shape` says, or the expected
// number of distinct experts among uniform choices.
double MetExperts(double pairs, int32_t experts, const CostContext& shape);

// Expected number of distinct experts among `pairs` uniform choices.
double ExpectedExperts(double pairs, int32_t experts);

double WeightBytes(const PackedWeight& weight);

OpCost CostOf(const EmbedParams& p, const CostContext& shape = {});
OpCost CostOf(const RmsNormParams& p, const CostContext& shape = {});
OpCost CostOf(const GemmParams& p, const CostContext& shape = {});
OpCost CostOf(const HeadGemmParams& p, const CostContext& shape = {});
OpCost CostOf(const AddParams& p, const CostContext& shape = {});
OpCost CostOf(const SiluMulParams& p, const CostContext& shape = {});
OpCost CostOf(const CopyRowsParams& p, const CostContext& shape = {});
OpCost CostOf(const ToBf16Params& p, const CostContext& shape = {});
OpCost CostOf(const RopeQueryParams& p, const CostContext& shape = {});
OpCost CostOf(const KvWriteParams& p, const CostContext& shape = {});
OpCost CostOf(const MlaDecodeParams& p, const CostContext& shape);
OpCost CostOf(const GatherKvParams& p, const CostContext& shape = {});
OpCost CostOf(const MlaPrefillParams& p, const CostContext& shape = {});
OpCost CostOf(const RouteExpertsParams& p, const CostContext& shape = {});
OpCost CostOf(const GroupRowsParams& p, const CostContext& shape = {});
OpCost CostOf(const GroupedGemmParams& p, const CostContext& shape = {});
OpCost CostOf(const CombineExpertsParams& p, const CostContext& shape = {});
OpCost CostOf(const ExpertPartialsParams& p, const CostContext& shape = {});
OpCost CostOf(const AddPartialsParams& p, const CostContext& shape = {});
OpCost CostOf(const ArgmaxParams& p, const CostContext& shape = {});
OpCost CostOf(const SampleParams& p, const CostContext& shape = {});
OpCost CostOf(const RelaxDraftsParams& p, const CostContext& shape = {});
// DeepSeek-V4's (kernels/ops_v4.h).
OpCost CostOf(const HyperPreParams& p, const CostContext& shape = {});
OpCost CostOf(const HyperPostParams& p, const CostContext& shape = {});
OpCost CostOf(const HyperHeadParams& p, const CostContext& shape = {});
OpCost CostOf(const BroadcastStreamsParams& p, const CostContext& shape = {});
OpCost CostOf(const RotateHeadsParams& p, const CostContext& shape = {});
OpCost CostOf(const WriteKeysParams& p, const CostContext& shape = {});
OpCost CostOf(const CompressParams& p, const CostContext& shape = {});
OpCost CostOf(const SelectEntriesParams& p, const CostContext& shape);
OpCost CostOf(const WindowAttentionParams& p, const CostContext& shape);
OpCost CostOf(const RouteSoftplusParams& p, const CostContext& shape = {});
OpCost CostOf(const ClampedSiluMulParams& p, const CostContext& shape = {});
// Slot state: a few integers per slot.
template <class SlotParams>
OpCost CostOf(const SlotParams&, const CostContext&) {
  return {};
}

}  // namespace foredraft
