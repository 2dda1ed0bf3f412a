#pragma once

// The least that an op must move and compute, by its parameters: every input read once, every output written
// once, no reuse between ops. The roofline is this cost divided by the measured rates of the device.

#include <cstdint>
#include <memory>

#include "kernels/ops.h"
#include "tests/bench/slowest_rank.h"

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
  int32_t met_experts = 0;        // experts that have rows; 0: as many as the slowest rank or uniform choices
  bool sampled = false;           // rows are drawn, not greedy
  bool filtered = false;          // sampled rows have top-k or top-p
  int32_t part = -1;              // of rows whose experts run in parts (PartRowsParams): the first has all
                                  // expected pairs, the others none; -1: not in parts
  std::shared_ptr<const SlowestRank> slowest = nullptr;  // of expert_ranks; null: all ranks meet the mean
};

// Pairs that this rank's experts have. Without parts the outputs have room for the pairs of all ranks.
inline double OwnPairs(const GroupedGemmParams& p, const CostContext& shape) {
  if (shape.part >= 0) return shape.part == 0 ? p.expected_rows : 0;
  return (p.silu_f8 ? p.silu_f8.rows : p.out.rows) / double(shape.expert_ranks);
}

// How many experts have rows. The arrays are in host memory.
int32_t MetExperts(const GroupedGemmParams& p);

// How many of `experts` experts have rows if `pairs` pairs are theirs, the mean of all ranks: as `shape`
// says, or the expected number of distinct experts among uniform choices.
double MetExperts(double pairs, int32_t experts, const CostContext& shape);

// Expected number of distinct experts among `pairs` uniform choices.
double ExpectedExperts(double pairs, int32_t experts);

double WeightBytes(const PackedWeight& weight);

// The positions that each row attends: its context, or a list of sparse attention.
inline int32_t AttendedPositions(const MlaDecodeParams& p, const CostContext& shape) {
  const bool listed = p.selected != nullptr && shape.context > p.selected_count;
  return listed ? p.selected_count : shape.context;
}

// The cost of every op but the slot ops.
#define OP(name, Stem) OpCost CostOf(const Stem##Params& p, const CostContext& shape = {});
#define SLOT_OP(name, Stem)
#include "kernels/ops/list.inc"
// Slot state: a few integers per slot.
template <class SlotParams>
OpCost CostOf(const SlotParams&, const CostContext&) {
  return {};
}

}  // namespace foredraft
