#pragma once

// Parameters of the matrix products with packed weights. kernels/ops.h has the rules and the letters in
// shapes.

#include <cstdint>
#include <limits>

#include "kernels/tensor.h"

namespace foredraft {

// The two forms of a forward (docs/invariants.md, two-forms): prompt rows or generated rows. A backend may
// have a kernel for each; it never chooses one by the number of rows.
enum class GemmForm : int32_t { kDecode, kPrefill };

// out = x weight^T (+ bias), FP32 accumulation. The weight's shape and the form alone fix the order along k.
struct GemmParams {
  Matrix<float> out;      // [R, n] or absent
  Matrix<bf16> out_bf16;  // [R, n] or absent
  Matrix<const bf16> x;   // [R, k]; data may be null where x_f8 is read instead
  QuantizedRows x_f8;     // x quantised, read if the weight is FP8; if absent, the op quantises x itself
  PackedWeight weight;    // [n, k]
  const float* bias;      // [n] or null
  GemmForm form = GemmForm::kDecode;
};

// One small GEMM per head: out[r, h] = x[r, h] heads[h]^T. The absorbed form's q_nope W_UK and W_UV o_lat.
struct HeadGemmParams {
  Matrix<bf16> out;      // [R, H * n] with head h at column h * out_head_stride
  Matrix<const bf16> x;  // [R, ...] with head h at column h * x_head_stride
  PackedWeights heads;   // [H], each [n, k]
  int32_t out_head_stride;
  int32_t x_head_stride;
  // [R, H * n] or absent: gets the outputs quantised; `out` is then undefined. Only where
  // Device::quantizes_rows, for heads side by side.
  QuantizedRows out_f8 = {};
};

// out[g] = x[x_rows ? x_rows[g] : g] experts[e]^T for the grouped rows g of each expert e. A row's bits do
// not depend on the other rows.
struct GroupedGemmParams {
  Matrix<float> out;      // [R * top_k, n]; absent if silu_f8 is present
  QuantizedRows silu_f8;  // [R * top_k, n / 2] or absent: silu_mul of out, quantised. Only where
                          // Device::quantizes_rows, for FP8 weights with k and n / 2 multiples of 128
  float silu_limit = std::numeric_limits<float>::infinity();  // silu_mul's limit
  Matrix<const bf16> x;                                       // [*, k]; as in gemm
  QuantizedRows x_f8;                                         // as in gemm
  const int32_t* x_rows;                                      // [R * top_k] or null
  const int32_t* expert_offsets;                              // [E + 1]
  PackedWeights experts;                                      // [E], each [n, k]
  int32_t expected_rows = 0;  // likely number of grouped rows; 0: R * top_k, the largest. Changes no bits,
                              // may change the time
};

}  // namespace foredraft
