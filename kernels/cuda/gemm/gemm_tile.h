#pragma once

// The GEMM for any shape: mma.sync tiles, operands loaded by cp.async. It is the reference of the faster
// kernels and handles the shapes that they do not support.
//
// Bits of an output: with BF16 weights, one accumulator over k16 groups in ascending order. With FP8 weights,
// for each block of 128 inputs a sum from zero over its k16 groups (E4M3 codes are exact in BF16), then out =
// fma(scale of x * scale of w, sum, out), blocks ascending. Bits do not depend on tile sizes, row indices or
// row counts. For a weight with segments the above holds for each segment.

#include <cstdint>

#include "kernels/cuda/dense/quantize.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/gemm/gemm_items.h"
#include "kernels/ops/attention.h"
#include "kernels/tensor.h"

namespace foredraft::cuda {

// The common form of all GEMM ops.
struct GemmProblem {
  Matrix<float> out;                // [R, ...] or absent
  Matrix<bf16> out_bf16;            // [R, ...] or absent
  Matrix<const bf16> x;             // [*, k]; not read where the weights are FP8
  QuantizedRows x_f8;               // for FP8 weights: row r of the problem, already gathered
  const int32_t* x_rows = nullptr;  // BF16: row r of the problem is row x_rows[r] of x; null: r
  const float* bias = nullptr;      // [n]
  PackedWeight weight;              // of group 0
  int64_t data_stride = 0;          // bytes to the next group's weight
  int64_t scale_stride = 0;         // floats to the next group's scales
  int64_t x_group_stride = 0;       // elements: group g reads columns from g * x_group_stride
  int64_t out_group_stride = 0;     // elements
  GroupRowRanges ranges = {};       // with offsets in device memory, `rows` is the largest total
  int32_t expected_rows = 0;        // with offsets: expected total, for the choice of tiles; 0: ranges.rows
  int32_t splits = 1;               // of k; more than 1 only for HopperGemm and Gemm4Bit
  void* partials = nullptr;         // HopperPartialBytes or PartialBytes4Bit, 256-byte aligned
  // Absent, or for HopperGemm with BF16 weights of 128 outputs: group g stores its outputs quantised, in the
  // columns from 128 g on, and nowhere else.
  QuantizedRows out_f8 = {};
  // For HopperGemm, if rotated.out is present: stores the outputs rotated, in rotated.out and nowhere else.
  RopeQueryParams rotated = {};
};

// Rows [first, first + count) of a problem with one group.
inline GemmProblem RowRange(const GemmProblem& q, int32_t first, int32_t count) {
  GemmProblem range = q;
  range.ranges.rows = count;
  if (q.out) range.out = q.out.row_range(first, count);
  if (q.out_bf16) range.out_bf16 = q.out_bf16.row_range(first, count);
  if (q.x_f8) range.x_f8 = q.x_f8.row_range(first, count);
  if (q.x) range.x = q.x.row_range(first, count);
  if (q.rotated.out) {
    range.rotated.out = q.rotated.out.row_range(first, count);
    range.rotated.index = RowsOf(q.rotated.index, first, count);
  }
  return range;
}

// rows_per_tile: 0 chooses by the row count (the bits are the same); tests force one.
void TileGemm(Stream& stream, const GemmProblem& problem, int rows_per_tile = 0);

}  // namespace foredraft::cuda
