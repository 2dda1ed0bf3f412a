#pragma once

// Element types of tensors, and the scalar conversions all backends share.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace foredraft {

enum class DType : int32_t { kF32, kBF16, kF8E4M3, kInt4, kF4E2M1, kE8M0 };

// Kinds of 4-bit codes, two to a byte, the first in the low nibble.
constexpr bool Is4Bit(DType dtype) { return dtype == DType::kInt4 || dtype == DType::kF4E2M1; }

// Bytes of an element, which is not of a 4-bit kind.
constexpr size_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : dtype == DType::kBF16 ? 2 : 1; }

// The type's name, as safetensors spells it where that format has the type.
constexpr const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kInt4:
      return "INT4";
    case DType::kF4E2M1:
      return "F4_E2M1";
    case DType::kE8M0:
      return "F8_E8M0";
  }
  return "";
}

// The upper half of a float. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
  uint16_t bits;
};

constexpr float ToFloat(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
constexpr bf16 ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// OCP FP8 E4M3 (fn): no infinity, 0x7f and 0xff are NaN, largest 448.
inline float F8E4M3ToFloat(uint8_t x) {
  const int exponent = (x >> 3) & 15;
  const int mantissa = x & 7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000u);
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (x & 0x80) ? -magnitude : magnitude;
}

// The value of a 4-bit code before its scale. INT4 codes have an offset of 8, as compressed-tensors stores
// them. E2M1 is OCP's: bit 3 is the sign.
constexpr float Code4ToFloat(DType dtype, int code) {
  if (dtype == DType::kInt4) return static_cast<float>(code - 8);
  constexpr float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8];
}

// The value of a code of either size before its scale.
inline float CodeToFloat(DType dtype, int code) {
  return Is4Bit(dtype) ? Code4ToFloat(dtype, code) : F8E4M3ToFloat(static_cast<uint8_t>(code));
}

// OCP E8M0: a power of two; 0xff is NaN. BF16 holds all of them.
constexpr bf16 E8M0ToBf16(uint8_t x) {
  if (x == 0xff) return {0x7fc0};
  return {x == 0 ? uint16_t{0x0040} : static_cast<uint16_t>(x << 7)};
}

}  // namespace foredraft
