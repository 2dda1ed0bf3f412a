#pragma once

// The exponential functions of all backends: only IEEE additions and products, nothing fused (the CPU is
// built with -ffp-contract=off, CUDA with --fmad=false), no library call. So loops over these functions
// vectorise without changing a bit, and device code gets the same bits.

#include <bit>
#include <cstdint>
#include <limits>

namespace foredraft {

// e^x within 2 units in the last place; 0 below -87.3, infinity above 88.3 (where e^x would leave the normal
// floats), NaN for NaN.
constexpr float Exp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  constexpr float kLn2High = 0.69314575195f;  // 0x3f317200: 9 trailing zeros, so n * kLn2High is exact
  constexpr float kLn2Low = 1.42860677e-6f;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln 2 / 2
  // Taylor series to the 7th power: the remainder is below 6e-9.
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

constexpr float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// silu(min(gate, limit)) * clamp(up, -limit, limit), the activation of a gated MLP. Returns NaN for NaN,
// which is why it compares: fminf would return the limit.
constexpr float GatedSilu(float gate, float up, float limit) {
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : (up < -limit ? -limit : up);
  return g * Sigmoid(g) * u;
}

// softplus(x) = ln(1 + e^x) within 6 units in the last place: Exp's 2, and those of a few roundings. 0 below
// -87.3; NaN for NaN.
constexpr float Softplus(float x) {
  const float y = Exp(x < 0.0f ? x : -x);  // e^-|x|, in (0, 1]
  // ln(1 + y) = 2 atanh(s) = 2 (s + s^3/3 + ...), s = y / (2 + y) <= 1/3: the remainder is below 2e-9 of it.
  const float s = y / (2.0f + y);
  const float square = s * s;
  float series = 1.0f / 15.0f;
  series = series * square + 1.0f / 13.0f;
  series = series * square + 1.0f / 11.0f;
  series = series * square + 1.0f / 9.0f;
  series = series * square + 1.0f / 7.0f;
  series = series * square + 1.0f / 5.0f;
  series = series * square + 1.0f / 3.0f;
  const float log = 2.0f * (s + s * square * series);
  return (x > 0.0f ? x : 0.0f) + log;
}

}  // namespace foredraft
