#pragma once

// Rounds weights to codes. A group's or block's scale is chosen from a few candidates, derived from its
// largest magnitude, by the least sum of squared errors.

#include <cstdint>
#include <vector>

#include "kernels/cpu/device/thread_pool.h"
#include "kernels/dtype.h"

namespace foredraft {

// Sums over elements; they add up over groups, blocks and tensors.
struct QuantizationError {
  double squared_error = 0;
  double squared_weight = 0;
  double largest_error = 0;
  int64_t count = 0;

  void Add(float weight, float quantised);
  QuantizationError& operator+=(const QuantizationError& other);
  // Root of the mean squared error over the weights' root mean square; 0 for zeros.
  double relative() const;
};

// Quantises `count` (even) adjacent weights of a row to codes, packed as compressed-tensors packs INT4, and a
// positive scale. Weights are finite.
QuantizationError QuantizeInt4Group(const float* weights, int count, uint8_t* codes, bf16* scale);

// Quantises 16 adjacent weights of a row as modelopt does: E2M1 codes, and largest / (6 tensor_scale) as an
// E4M3 scale of at least 2^-9; the scale of zeros is 1. Weights are finite, tensor_scale > 0.
QuantizationError QuantizeNvfp4Group(const float* weights, float tensor_scale, uint8_t* codes,
                                     uint8_t* scale);

// Quantises a block of rows x columns, at most 128 x 128; `weight_stride` and `code_stride` are in elements.
// `scale` is the multiplier (weight_scale_inv): a power of two if `power_of_two`, which E8M0 scales need.
// Weights are finite.
QuantizationError QuantizeF8Block(const float* weights, int64_t weight_stride, int rows, int columns,
                                  uint8_t* codes, int64_t code_stride, float* scale,
                                  bool power_of_two = false);

// The sum of error_of(i) over i in [0, count), in order, computed on the pool. `cost`: of one call, as
// ParallelFor counts it.
template <class ErrorOf>
QuantizationError SumErrors(ThreadPool& pool, int64_t count, int64_t cost, const ErrorOf& error_of) {
  std::vector<QuantizationError> errors(count);
  pool.ParallelFor(count, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) errors[i] = error_of(i);
  });
  QuantizationError sum;
  for (const QuantizationError& error : errors) sum += error;
  return sum;
}

}  // namespace foredraft
