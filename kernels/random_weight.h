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

// Element (row, column) of item i has number offset + i * item_stride + row * row_stride + column *
// column_stride.
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

  constexpr int64_t number(int64_t item, int64_t row, int64_t column) const {
    return offset + item * item_stride + row * row_stride + column * column_stride;
  }
};

// [n, k], item after item.
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

// A sign, one of the four binades from 1 to 16, and three mantissa bits: all these codes are equally likely.
constexpr uint8_t RandomF8(const RandomWeight& weight, int64_t number) {
  const auto bits = static_cast<uint32_t>(RandomBits(weight.seed, number) >> 58);
  return static_cast<uint8_t>((bits & 0x20) << 2 | (7 + (bits >> 3 & 3)) << 3 | (bits & 7));
}

// The scale of all blocks: the root mean square of those codes is 6.7567. (Mean of 4^e over e = 0..3, 21.25,
// times mean of (1 + m / 8)^2 over m = 0..7, 2.1484.)
constexpr float RandomF8Scale(const RandomWeight& weight) { return weight.amplitude / 6.7567f; }

// INT4: any value but -8, 0 twice as likely as the others, so that the mean is 0. F4_E2M1: any code.
constexpr uint8_t RandomCode4(const RandomWeight& weight, int64_t number) {
  const auto code = static_cast<uint8_t>(RandomBits(weight.seed, number) >> 60);
  return weight.format.code == DType::kInt4 && code == 0 ? uint8_t{8} : code;
}

// The scale of all groups. Of INT4: the root mean square of those codes is sqrt(280 / 16). Of F4_E2M1, whose
// scales are powers of two and whose codes have sqrt(68.5 / 8): the power of two that makes the root mean
// square the largest that does not exceed the amplitude.
inline bf16 RandomGroupScale(const RandomWeight& weight) {
  if (weight.format.code == DType::kInt4) return ToBf16(weight.amplitude / 4.18330f);
  return ToBf16(std::exp2(std::floor(std::log2(weight.amplitude / 2.92617f))));
}

// The tensor scale, beside group scales of 1.
constexpr float RandomTensorScale(const RandomWeight& weight) {
  return weight.format.tensor_scale ? weight.amplitude / 2.92617f : 1.0f;
}

// The bytes of the scale of all blocks or groups, DTypeBytes(weight.format.scale) of them.
struct RandomScale {
  char bytes[sizeof(float)] = {};
};
inline RandomScale RandomScaleOf(const RandomWeight& weight) {
  constexpr char kOne = 0x38;  // E4M3
  RandomScale scale;
  if (weight.format.tensor_scale) {
    scale.bytes[0] = kOne;
  } else if (Is4Bit(weight.format)) {
    const bf16 group_scale = RandomGroupScale(weight);
    std::memcpy(scale.bytes, &group_scale, sizeof(group_scale));
  } else {
    const float block_scale = RandomF8Scale(weight);
    std::memcpy(scale.bytes, &block_scale, sizeof(block_scale));
  }
  return scale;
}

}  // namespace foredraft
