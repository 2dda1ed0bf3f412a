#pragma once

// Which tiles the GEMM kernels for Hopper (gemm_hopper.h, gemm_gate_up.h) and for 4-bit weights (gemm_4bit.h)
// use, and how long they should take. A pure function of shapes without CUDA's headers: launches, unit tests
// and tests/bench call the same one.
//
// Only the number of splits of k decides bits. It follows from the whole weight's shape alone. Tile sizes
// decide time and nothing else, so they may depend on the number of rows. So may the splits of a weight with
// segments: they only say which blocks sum which segments.
//
// The prediction of Hopper's kernels, per block of one multiprocessor (SM):
//   step    one k tile of 128 bytes: the longest of wgmma, of a step with its rows' TMA, and of the loads at
//           an SM's rate
//   item    its steps, then the epilogue
//   wave    one item per SM: an item's time, or the wave's bytes at the rate of memory or of L2
//   launch  start, all waves, end; with splits, the exchange of partial sums
// Gemm4Bit has several blocks on an SM. A block's step, of 128 inputs, takes the longest of three times: the
// latency of its instructions; the time of the SM's busiest unit (issue of instructions, ldmatrix, mma),
// times the blocks there; and its bytes at a block's rate.
//
// The constants of steps follow from times of all tiles on an H200 (tests/bench/RESULTS.md); the others are
// estimates from specifications.

#include <cstdint>

#include "kernels/rules/weight_segments.h"
#include "kernels/weight_format.h"

namespace foredraft::cuda {

// An output tile. HopperGemm has a multiple of 16 rows, up to 128 (above 64 the kernel has two consumer
// warpgroups), and 16, 32, 64 or 128 outputs; Gemm4Bit has 16, 32 or 64 rows and 64 outputs.
struct GemmTile {
  int32_t rows = 0;
  int32_t outputs = 0;
};

struct GemmSize {
  int32_t n = 0;
  int32_t k = 0;
  int32_t element_bytes = 0;          // of weights and rows: 1 FP8, 2 BF16; not read for 4-bit kinds
  int32_t rows = 0;                   // of each group; if `ragged`, expected of all groups together
  int32_t groups = 1;                 // weights: experts, heads
  bool ragged = false;                // each row belongs to one random group: experts
  WeightFormat format = kInt4Format;  // of Gemm4Bit
  int32_t segments = 1;               // canonical segments of k (kernels/rules/weight_segments.h)
};

// The rates of a device.
struct GemmRates {
  double memory_bytes_per_us = 4.3e6;  // H200
  double l2_bytes_per_us = 8.5e6;
  double sm_bytes_per_us = 1.0e5;         // into one SM
  double sm_memory_bytes_per_us = 6.0e4;  // of these from memory
  double cycles_per_us = 1755;
  int32_t multiprocessors = 132;
};

struct GemmPlan {
  GemmTile tile;
  int32_t splits = 1;
  double items = 0;             // tiles x splits; the expected number if ragged
  int32_t blocks = 0;           // with an item; at most one per SM, or Resident4Bit for Gemm4Bit
  int32_t waves = 0;            // items of the block that has most
  int32_t stages = 0;           // of the pipeline of loads
  int64_t bytes_in_flight = 0;  // per block, when all stages are loading
  double microseconds = 0;
};

inline constexpr int32_t kMaxGemmSplits = 8;

// How many parts of k different blocks sum; their sums are added in ascending order. Only in the decode form
// and for a single group. This number has the least predicted time over few, some and many rows; it is 1
// unless more gain 10%.
int32_t GemmSplits(int32_t n, int32_t k, int32_t element_bytes);

// Predicts HopperGemm with this tile and these splits. It has no kernel for splits with more than 64 rows by
// 128 outputs; of a weight with segments, none for more than 64 rows or 128 outputs.
GemmPlan PredictGemm(const GemmSize& size, GemmTile tile, int32_t splits, const GemmRates& rates = {});

// The tile with the least predicted time; with only_outputs, among tiles with so many outputs.
GemmPlan PlanGemm(const GemmSize& size, int32_t splits = 1, const GemmRates& rates = {},
                  int32_t only_outputs = 0);

// GateUpGemm: `outputs` is 256, 128 of gate and of up. size.n: of gate and up together.
GemmPlan PlanGateUp(const GemmSize& size, const GemmRates& rates = {});

// Whether GateUpGemm is predicted to take less time than HopperGemm and silu_mul. The bits are the same.
bool GateUpIsFaster(const GemmSize& size, const GemmRates& rates = {});

// ---- Gemm4Bit ----

// Stages and blocks of an SM: as many as fit the shared memory of Hopper. A GPU with less runs fewer blocks.
constexpr int32_t Stages4Bit(int32_t tile_rows) { return tile_rows == 16 ? 6 : tile_rows == 32 ? 4 : 3; }
constexpr int32_t Resident4Bit(int32_t tile_rows) { return tile_rows == 64 ? 3 : 4; }

GemmPlan Predict4Bit(const GemmSize& size, int32_t tile_rows, int32_t splits, const GemmRates& rates = {});

// The tile with the least predicted time.
GemmPlan Plan4Bit(const GemmSize& size, int32_t splits = 1, const GemmRates& rates = {});

// Like GemmSplits, over fewer rows: 4 bits are for few streams.
int32_t Splits4Bit(int32_t n, int32_t k, const WeightFormat& format);

// How many blocks share the segments of a tile, in either kernel: 1 unless more gain 10% with these rows.
int32_t SegmentShares(const GemmSize& size, const GemmRates& rates = {});

// ---- sums of segments that wait for others (segment_sums.h) ----

inline constexpr int32_t kWaitingSets = 3;  // of 1, 2 and 4 segments

// The bytes of `sets` in a block whose `threads` have `sums` each.
constexpr int32_t WaitingBytes(int32_t sets, int32_t threads, int32_t sums) {
  return sets * threads * sums * 4;
}

// The sets of a Hopper tile that are in shared memory: all sets up to 64 outputs. With more outputs that
// would leave too few stages: only the first set, which half of the segments use, is in shared memory, the
// others in device memory.
constexpr int32_t SetsInShared(int32_t outputs) { return outputs <= 64 ? kWaitingSets : 1; }
// `rows` and `outputs` of the kernel.
constexpr int32_t SharedWaitingBytes(int32_t rows, int32_t outputs) {
  return WaitingBytes(SetsInShared(outputs), rows * 2, outputs / 2);
}
constexpr int32_t DeviceWaitingBytes(int32_t rows, int32_t outputs) {
  return WaitingBytes(kWaitingSets - SetsInShared(outputs), rows * 2, outputs / 2);
}

// ---- shared memory of the kernels for Hopper ----

// A stage holds rows of both operands, the FP8 scales of the rows and of a few before them (ScaleRows), and
// those of the weight (16 bytes for each 128 outputs or less).
constexpr int32_t kGemmSharedBudget = 216 * 1024;  // for all stages

// TMA reads from addresses that are multiples of 16 bytes, so the scales of a tile's rows are loaded from a
// multiple of kScaleAlignment rows on. In shared memory they take a multiple of 128 bytes.
constexpr int32_t kScaleAlignment = 4;
constexpr int32_t ScaleRows(int32_t rows) { return (rows + kScaleAlignment + 31) / 32 * 32; }

constexpr int32_t GemmStageBytes(int32_t rows, int32_t weight_rows) {
  return (rows + weight_rows) * 128 + ScaleRows(rows) * 4 + (weight_rows > 128 ? 2 : 1) * 16;
}

}  // namespace foredraft::cuda
