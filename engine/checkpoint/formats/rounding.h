#pragma once

// Rounds weights to codes. The scale of a group or block is the one of a few
// candidates round the largest magnitude that gives the least sum of squared errors.

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

// A group of `count` (even) adjacent weights of a row: codes as compressed-tensors packs INT4, and a positive
// scale. Finite weights.
QuantizationError QuantizeInt4Group(const float* weights, int count, uint8_t* codes, bf16* scale);

// A group of 16 adjacent weights of a row as modelopt's quantiser rounds them: E2M1 codes, and the E4M3 scale
// of largest / (6 tensor_scale), at least 2^-9; 1 for zeros. Finite weights, tensor_scale > 0.
QuantizationError QuantizeNvfp4Group(const float* weights, float tensor_scale, uint8_t* codes,
                                     uint8_t* scale);

// A block of rows x columns, at most 128 x 128; `weight_stride` and `code_stride` in elements. `scale` is the
// multiplier (weight_scale_inv), a power of two where the format has E8M0 scales. Finite weights.
QuantizationError QuantizeF8Block(const float* weights, int64_t weight_stride, int rows, int columns,
                                  uint8_t* codes, int64_t code_stride, float* scale,
                                  bool power_of_two = false);

// The sum of error_of(i) over i in [0, count), in order, computed on the pool. `cost`: of one, as ParallelFor
// counts it.
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
