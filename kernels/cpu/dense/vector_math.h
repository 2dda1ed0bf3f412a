#pragma once

// Sums whose loops the compiler can vectorise without changing a bit (see also kernels/exp.h). Always
// inlined, to be compiled for the caller's register width (wide.h).

#include <cmath>
#include <cstdint>

#include "kernels/exp.h"

namespace foredraft {

// Sum of term(i) over [0, count): 16 accumulators (element i goes to i % 16), then a fixed tree.
template <class Term>
[[gnu::always_inline]] inline float LaneSum(int64_t count, const Term& term) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i + lane < count; ++lane) lanes[lane] += term(i + lane);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// 1 / sqrt(mean(x^2) + eps): the factor of an RMS norm.
[[gnu::always_inline]] inline float RmsFactor(const float* x, int64_t count, float eps) {
  const float sum = LaneSum(count, [x](int64_t i) { return x[i] * x[i]; });
  return 1.0f / std::sqrt(sum / static_cast<float>(count) + eps);
}

}  // namespace foredraft
