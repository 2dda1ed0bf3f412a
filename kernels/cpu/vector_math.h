#ifndef FOREDRAFT_KERNELS_CPU_VECTOR_MATH_H_
#define FOREDRAFT_KERNELS_CPU_VECTOR_MATH_H_

// Scalar functions whose loops the compiler can vectorise without changing a bit: only IEEE additions and
// products, no fused ones (-ffp-contract=off), no library call.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace foredraft {

// e^x within 2 units in the last place; 0 below -87.3, infinity above 88.3 (where e^x would leave the normal
// floats), NaN for NaN.
inline float Exp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  constexpr float kLn2High = 0.69314575195f;  // 0x3f317200: 9 trailing zeros, so n * kLn2High is exact
  constexpr float kLn2Low = 1.42860677e-6f;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln 2 / 2
  // Taylor to the 7th power: the rest is below 6e-9.
  float y = 1.0f / 5040.0f;
  y = y * r + 1.0f / 720.0f;
  y = y * r + 1.0f / 120.0f;
  y = y * r + 1.0f / 24.0f;
  y = y * r + 1.0f / 6.0f;
  y = y * r + 0.5f;
  y = y * (r * r) + r + 1.0f;
  const float scale = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127u) << 23);
  const float result = y * scale;
  return x < -87.3f ? 0.0f : x > 88.3f ? std::numeric_limits<float>::infinity() : result;
}

inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// Sum of term(i) over [0, count): 16 running sums (element i goes to i % 16), then a fixed tree.
template <class Term>
float LaneSum(int64_t count, const Term& term) {
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
inline float RmsFactor(const float* x, int64_t count, float eps) {
  const float sum = LaneSum(count, [x](int64_t i) { return x[i] * x[i]; });
  return 1.0f / std::sqrt(sum / static_cast<float>(count) + eps);
}

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CPU_VECTOR_MATH_H_
