#pragma once

// How input rows of experts are rounded to NVFP4 (docs/deepseek-v3.md section 4). Both backends compute by
// these functions, so codes and scales are the same everywhere. For 16 columns of a row x and the experts'
// input scale a, in FP32 and rounded to nearest after every operation:
//
//   b     = E4M3 of max|x| / (6 a), ties to even, at most 448; 0 where that is 2^-10 or less
//   code  = E2M1 of x / (b a), ties to the even code, at most 6; 0 where b is 0
//   value = code * b, which is exactly a BF16 value: at most 6 significant bits, 2^-10 to 2688
//
// The value lacks the factor a: the tensor scale of the experts' weights includes it. A group with an element
// that is not finite has b = NaN and codes 0, and all its values are NaN.

#include <bit>
#include <cstdint>

#include "kernels/dtype.h"

namespace foredraft {

inline constexpr int32_t kNvfp4Group = 16;       // columns that share a scale
inline constexpr uint8_t kNvfp4NanScale = 0x7f;  // E4M3
// Input scales outside of these would let 6 a or b a leave the normal floats.
inline constexpr float kSmallestInputScale = 0x1p-100f;
inline constexpr float kLargestInputScale = 0x1p100f;

// The E4M3 code of b. magnitude: the largest |x| of the group as the bits of a BF16 value, which compare as
// the values do; infinity and NaN are the largest.
constexpr uint8_t Nvfp4Scale(uint32_t magnitude, float input_scale) {
  if (magnitude >= 0x7f80u) return kNvfp4NanScale;
  const float wanted = ToFloat(bf16{static_cast<uint16_t>(magnitude)}) / (6.0f * input_scale);
  const uint32_t bits = std::bit_cast<uint32_t>(wanted);
  // From 2^-6 on: exponent and top three mantissa bits are one integer, which grows by 1 from code to code.
  const uint32_t normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3);
  // Below 2^-6: adding 2^14 leaves the multiple of 2^-9 in the lowest bits.
  const uint32_t subnormal = std::bit_cast<uint32_t>(wanted + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
  return static_cast<uint8_t>(wanted < 0x1p-6f ? subnormal : wanted < 448.0f ? normal : 0x7eu);
}

// The value of a code of Nvfp4Scale other than NaN's.
constexpr float Nvfp4ScaleValue(uint8_t scale) {
  const float normal = std::bit_cast<float>((uint32_t{scale} << 20) + (120u << 23));
  return scale < 8 ? static_cast<float>(scale) * 0x1p-9f : normal;
}

// The E2M1 code of x / (b a). product: b a, of Nvfp4Product.
constexpr uint8_t Nvfp4Code(bf16 x, float product) {
  if (!(product > 0)) return 0;
  const float quotient = ToFloat(bf16{static_cast<uint16_t>(x.bits & 0x7fffu)}) / product;
  const int code = (quotient > 0.25f) + (quotient >= 0.75f) + (quotient > 1.25f) + (quotient >= 1.75f) +
                   (quotient > 2.5f) + (quotient >= 3.5f) + (quotient > 5.0f);
  return static_cast<uint8_t>(code | (x.bits >> 12 & 8));
}

// b a for Nvfp4Code; 0 where b is 0 or NaN.
constexpr float Nvfp4Product(uint8_t scale, float input_scale) {
  return scale == kNvfp4NanScale ? 0.0f : Nvfp4ScaleValue(scale) * input_scale;
}

// code * b.
constexpr bf16 Nvfp4Value(uint8_t code, uint8_t scale) {
  if (scale == kNvfp4NanScale) return {0x7fc0};
  const uint32_t magnitude = code & 7u;
  const float from_one = std::bit_cast<float>((magnitude << 22) + (126u << 23));
  const float value = magnitude < 2 ? static_cast<float>(magnitude) * 0.5f : from_one;
  const uint32_t bits = std::bit_cast<uint32_t>(value * Nvfp4ScaleValue(scale));
  return {static_cast<uint16_t>(bits >> 16 | (code & 8u) << 12)};
}

}  // namespace foredraft
