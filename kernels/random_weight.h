#pragma once

// Random weights (load_format dummy), generated on the device that uses them. An element depends only on the
// seed and its number, so every backend generates the same ones, and two weights can be views of one matrix
// (kv_b and its heads).

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"
#include "kernels/weight_format.h"

namespace foredraft {

// Element (row, column) of item i has number
// offset + i * item_stride + row * row_stride + column * column_stride, plus `jump` where row >= jump_row:
// so a weight can be two ranges of rows of a larger matrix.
struct RandomWeight {
  int32_t n = 0;
  int32_t k = 0;
  WeightFormat format;  // as HostWeight has it, with one scale for all blocks or groups
  float amplitude = 0;  // root mean square
  uint64_t seed = 0;
  int64_t offset = 0;
  int64_t item_stride = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  int64_t jump = 0;
  int32_t jump_row = 0;
  float input_scale = 1;  // of inputs rounded to NVFP4: another factor of the tensor scale

  constexpr int64_t number(int64_t item, int64_t row, int64_t column) const {
    return offset + item * item_stride + row * row_stride + column * column_stride +
           (row >= jump_row ? jump : 0);
  }
};

// A weight whose items [n, k] are numbered one after another.
constexpr RandomWeight DenseRandomWeight(int32_t n, int32_t k, const WeightFormat& format, float amplitude,
                                         uint64_t seed) {
  return {.n = n,
          .k = k,
          .format = WithWideScales(format),
          .amplitude = amplitude,
          .seed = seed,
          .item_stride = int64_t{n} * k,
          .row_stride = k};
}

// splitmix64: 64 uniform bits per number.
constexpr uint64_t RandomBits(uint64_t seed, int64_t number) {
  uint64_t x = seed + static_cast<uint64_t>(number) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Uniform in (-a, a), a = sqrt(3) amplitude.
constexpr bf16 RandomBf16(const RandomWeight& weight, int64_t number) {
  const auto step = static_cast<float>(RandomBits(weight.seed, number) >> 40);  // 24 bits: exact
  return ToBf16((step * 0x1p-23f - 1.0f) * (1.7320508f * weight.amplitude));
}

// A code of a quantised weight; the mean of the values is 0:
//
//   F8_E4M3   a sign, one of the four binades from 1 to 16, and three mantissa bits, all equally likely
//   INT4      any value except -8; 0 is twice as likely as any other
//   F4_E2M1   any code
constexpr uint8_t RandomCode(const RandomWeight& weight, int64_t number) {
  const uint64_t bits = RandomBits(weight.seed, number);
  if (weight.format.code == DType::kF8E4M3) {
    const auto six = static_cast<uint32_t>(bits >> 58);
    return static_cast<uint8_t>((six & 0x20) << 2 | (7 + (six >> 3 & 3)) << 3 | (six & 7));
  }
  const auto code = static_cast<uint8_t>(bits >> 60);
  return weight.format.code == DType::kInt4 && code == 0 ? uint8_t{8} : code;
}

// The root mean square of RandomCode's values. F8_E4M3: the mean of 4^e over e = 0..3, 21.25, times that of
// (1 + m / 8)^2 over m = 0..7, 2.1484. INT4: 280 / 16. F4_E2M1: 68.5 / 8.
constexpr float RandomCodeSize(DType code) {
  return code == DType::kF8E4M3 ? 6.7567f : code == DType::kInt4 ? 4.18330f : 2.92617f;
}

// The scale of all blocks or groups; 1 for a format with a tensor scale. For F4_E2M1 without one it is the
// largest power of two for which the root mean square does not exceed the amplitude.
inline float RandomScale(const RandomWeight& weight) {
  if (weight.format.tensor_scale) return 1.0f;
  const float scale = weight.amplitude / RandomCodeSize(weight.format.code);
  if (weight.format.code == DType::kF4E2M1) return std::exp2(std::floor(std::log2(scale)));
  return weight.format.scale == DType::kBF16 ? ToFloat(ToBf16(scale)) : scale;
}

constexpr float RandomTensorScale(const RandomWeight& weight) {
  if (!weight.format.tensor_scale) return 1.0f;
  return weight.amplitude / RandomCodeSize(weight.format.code) * weight.input_scale;
}

// The input scale of random NVFP4 weights: inputs of magnitudes up to 10.5 do not saturate.
inline constexpr float kRandomInputScale = 0x1p-8f;

// RandomScale in the format's type, in the first bytes.
struct ScaleBytes {
  char bytes[sizeof(float)] = {};
};
inline ScaleBytes RandomScaleBytes(const RandomWeight& weight) {
  constexpr char kOne = 0x38;  // E4M3
  const float scale = RandomScale(weight);
  const bf16 half = ToBf16(scale);
  ScaleBytes out;
  if (weight.format.scale == DType::kF32) {
    std::memcpy(out.bytes, &scale, sizeof(scale));
  } else if (weight.format.scale == DType::kBF16) {
    std::memcpy(out.bytes, &half, sizeof(half));
  } else {
    out.bytes[0] = kOne;
  }
  return out;
}

}  // namespace foredraft
