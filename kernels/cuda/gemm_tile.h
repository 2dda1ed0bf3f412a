#ifndef FOREDRAFT_KERNELS_CUDA_GEMM_TILE_H_
#define FOREDRAFT_KERNELS_CUDA_GEMM_TILE_H_

// The GEMM for any shape: mma.sync tiles, operands through cp.async. It is the oracle of the faster kernels
// and takes the shapes they do not.
//
// Bits of an output: BF16 weights, one accumulator over k16 groups in ascending order. FP8 weights, for each
// block of 128 inputs a sum from zero over its k16 groups (E4M3 codes are exact in BF16), then out =
// fma(scale of x * scale of w, sum, out), blocks ascending. Tiles, places and the number of rows do not
// enter.

#include <cstdint>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gemm_items.h"
#include "kernels/cuda/quantize.h"
#include "kernels/tensor.h"

namespace foredraft::cuda {

// What every GEMM op comes down to.
struct GemmProblem {
  Matrix<float> out;                // [R, ...] or absent
  Matrix<bf16> out_bf16;            // [R, ...] or absent
  Matrix<const bf16> x;             // [*, k]; not read where the weights are FP8
  QuantizedRows x_f8;               // where the weights are FP8: row r of the problem, gathered already
  const int32_t* x_rows = nullptr;  // BF16: row r of the problem is row x_rows[r] of x; null: r
  const float* bias = nullptr;      // [n]
  PackedWeight weight;              // of group 0
  int64_t data_stride = 0;          // bytes to the next group's weight
  int64_t scale_stride = 0;         // floats to the next group's scales
  int64_t x_group_stride = 0;       // elements: group g reads columns from g * this on
  int64_t out_group_stride = 0;     // elements
  GroupRowRanges ranges = {};       // offsets: row counts in device memory; then `rows` is their largest sum
};

// Rows per tile: 0 lets the number of rows choose (the bits are the same); tests name one.
void TileGemm(Stream& stream, const GemmProblem& problem, int rows_per_tile = 0);

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_GEMM_TILE_H_
