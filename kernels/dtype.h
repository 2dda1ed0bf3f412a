#ifndef FOREDRAFT_KERNELS_DTYPE_H_
#define FOREDRAFT_KERNELS_DTYPE_H_

// Element types of tensors, and the scalar conversions all backends share.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace foredraft {

enum class DType : int32_t { kF32, kBF16, kF8E4M3 };

constexpr size_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : dtype == DType::kBF16 ? 2 : 1; }
constexpr const char* DTypeName(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kBF16 ? "BF16" : "F8_E4M3";  // safetensors' spelling
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

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_DTYPE_H_
