#include "engine/checkpoint/formats/rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/weight_format.h"

namespace foredraft {
namespace {

// Rounds to the nearest integer, ties to even, for |x| < 2^22. Vectorises on any machine.
float RoundToInteger(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

float Int4Value(float x) { return std::min(std::max(RoundToInteger(x), -8.0f), 7.0f); }

// Keeps four sums, so that the loop vectorises without reordering additions.
float Int4Error(const float* weights, int count, float scale) {
  const float inverse = 1 / scale;
  float sums[4] = {};
  for (int i = 0; i + 4 <= count; i += 4) {
    for (int j = 0; j < 4; ++j) {
      const float error = weights[i + j] - scale * Int4Value(weights[i + j] * inverse);
      sums[j] += error * error;
    }
  }
  for (int i = count / 4 * 4; i < count; ++i) {
    const float error = weights[i] - scale * Int4Value(weights[i] * inverse);
    sums[0] += error * error;
  }
  return sums[0] + sums[1] + (sums[2] + sums[3]);
}

// The scale with the least error for the codes that rounding by `scale` gives.
float FittedScale(const float* weights, int count, float scale) {
  double product = 0;
  double square = 0;
  for (int i = 0; i < count; ++i) {
    const double value = Int4Value(weights[i] / scale);
    product += weights[i] * value;
    square += value * value;
  }
  return square > 0 ? static_cast<float>(product / square) : scale;
}

float Rounded(float x) { return ToFloat(ToBf16(x)); }

// Tries scales that map the largest magnitude to 5.5 .. 9.25: beyond 7.5 it saturates, so that the other
// weights are resolved better.
float BestInt4Scale(const float* weights, int count, float largest) {
  constexpr int kCandidates = 16;
  float best = 0;
  float least = INFINITY;
  const auto consider = [&](float scale) {
    if (!(scale >= 0x1p-120f)) return;  // so that the inverse stays finite
    const float error = Int4Error(weights, count, scale);
    if (error >= least) return;
    least = error;
    best = scale;
  };
  for (int i = 0; i < kCandidates; ++i) consider(Rounded(largest / (5.5f + 0.25f * static_cast<float>(i))));
  for (int pass = 0; best > 0 && pass < 2; ++pass) consider(Rounded(FittedScale(weights, count, best)));
  return best > 0 ? best : 1.0f;  // all weights are zero, or nearly
}

// The nearest E4M3 value, ties to even, at most 448.
float F8Value(float x) {
  const float magnitude = std::min(std::fabs(x), 448.0f);
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const float normal = std::bit_cast<float>((bits + 0x7ffffu + (bits >> 20 & 1u)) & 0xfff00000u);
  const float subnormal = (magnitude + 0x1p14f) - 0x1p14f;  // multiples of 2^-9
  return std::copysign(magnitude < 0x1p-6f ? subnormal : normal, x);
}

uint8_t F8Code(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(std::fabs(value));
  const uint32_t code =
      std::fabs(value) < 0x1p-6f ? static_cast<uint32_t>(std::fabs(value) * 512) : (bits >> 20) - (120u << 3);
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80u : 0u));
}

float F8RowError(const float* weights, int count, float scale, float inverse) {
  float sums[8] = {};
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int j = 0; j < 8; ++j) {
      const float error = weights[i + j] - scale * F8Value(weights[i + j] * inverse);
      sums[j] += error * error;
    }
  }
  for (; i < count; ++i) {
    const float error = weights[i] - scale * F8Value(weights[i] * inverse);
    sums[0] += error * error;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

void QuantizationError::Add(float weight, float quantised) {
  const double difference = double{weight} - quantised;
  squared_error += difference * difference;
  squared_weight += double{weight} * weight;
  largest_error = std::max(largest_error, std::fabs(difference));
  ++count;
}

QuantizationError& QuantizationError::operator+=(const QuantizationError& other) {
  squared_error += other.squared_error;
  squared_weight += other.squared_weight;
  largest_error = std::max(largest_error, other.largest_error);
  count += other.count;
  return *this;
}

double QuantizationError::relative() const {
  return squared_weight > 0 ? std::sqrt(squared_error / squared_weight) : 0;
}

QuantizationError QuantizeInt4Group(const float* weights, int count, uint8_t* codes, bf16* scale) {
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(weights[i]));
  const float best = BestInt4Scale(weights, count, largest);
  *scale = ToBf16(best);
  QuantizationError error;
  for (int i = 0; i < count; ++i) {
    const float value = Int4Value(std::clamp(weights[i] / best, -16.0f, 16.0f));
    const auto code = static_cast<uint8_t>(static_cast<int>(value) + 8);
    codes[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? code : codes[i / 2] | code << 4);
    error.Add(weights[i], value * best);
  }
  return error;
}

// The code of the nearest E2M1 value; halfway cases to the even code.
uint8_t Fp4Code(float x) {
  constexpr float kHalfway[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float magnitude = std::fabs(x);
  uint8_t code = 0;
  for (const float halfway : kHalfway) {
    if (magnitude > halfway || (magnitude == halfway && code % 2 == 1)) ++code;
  }
  return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

QuantizationError QuantizeNvfp4Group(const float* weights, float tensor_scale, uint8_t* codes,
                                     uint8_t* scale) {
  constexpr int kCount = kNvfp4Format.columns;
  float largest = 0;
  for (int i = 0; i < kCount; ++i) largest = std::max(largest, std::fabs(weights[i]));
  const float wanted = largest > 0 ? largest / (6 * tensor_scale) : 1.0f;
  const float rounded = F8Value(std::clamp(wanted, 0x1p-9f, 448.0f));
  *scale = F8Code(rounded);
  const float factor = rounded * tensor_scale;
  QuantizationError error;
  for (int i = 0; i < kCount; ++i) {
    const uint8_t code = Fp4Code(weights[i] / factor);
    codes[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? code : codes[i / 2] | code << 4);
    error.Add(weights[i], Code4ToFloat(DType::kF4E2M1, code) * factor);
  }
  return error;
}

QuantizationError QuantizeF8Block(const float* weights, int64_t weight_stride, int rows, int columns,
                                  uint8_t* codes, int64_t code_stride, float* scale, bool power_of_two) {
  // A factor of 2 would give the same mantissas again, so the candidates cover one octave. One power of two
  // lies in it; the next smaller power is tried as well: it saturates the largest magnitudes but resolves
  // small ones better.
  const int candidates = power_of_two ? 2 : 8;
  float largest = 0;
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < columns; ++i)
      largest = std::max(largest, std::fabs(weights[row * weight_stride + i]));
  }
  float best = 1;
  double least = INFINITY;
  for (int candidate = 0; candidate < candidates; ++candidate) {
    const float tried = power_of_two
                            ? std::exp2(std::ceil(std::log2(largest / 448)) - static_cast<float>(candidate))
                            : largest / 448 * std::exp2(static_cast<float>(candidate) / candidates);
    if (!(tried >= 0x1p-120f)) continue;
    double error = 0;
    for (int row = 0; row < rows; ++row) {
      error += double{F8RowError(weights + row * weight_stride, columns, tried, 1 / tried)};
    }
    if (error >= least) continue;
    least = error;
    best = tried;
  }
  *scale = best;
  QuantizationError error;
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < columns; ++i) {
      const float weight = weights[row * weight_stride + i];
      const float value = F8Value(weight * (1 / best));
      codes[row * code_stride + i] = F8Code(value);
      error.Add(weight, value * best);
    }
  }
  return error;
}

}  // namespace foredraft
