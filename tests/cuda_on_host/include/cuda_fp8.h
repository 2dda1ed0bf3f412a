#pragma once

// The E4M3 conversions that are used.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/dtype.h"

using __nv_fp8_storage_t = uint8_t;
using __nv_fp8x2_storage_t = uint16_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace cuda_on_host {

// Nearest, ties to even, saturating to 448. Every NaN is the canonical one, as cvt.e4m3x2 says: the sign of a
// NaN that the host computes follows from the order of operands, which compilers choose.
inline uint8_t FloatToE4m3(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  const float magnitude = __uint_as_float(bits & 0x7fffffffu);
  if (magnitude != magnitude) return 0x7fu;
  if (magnitude >= 448.0f) return static_cast<uint8_t>(sign | 0x7eu);
  // Multiples of 2^-9 below 2^-6; above, three bits after the leading one. Codes are consecutive in both
  // ranges.
  if (magnitude < 0x1p-6f) {
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(lrintf(magnitude * 512.0f)));
  }
  const uint32_t m = __float_as_uint(magnitude);
  const uint32_t rounded = (m + 0x7ffffu + (m >> 20 & 1u)) >> 20;  // exponent and three bits
  return static_cast<uint8_t>(sign | static_cast<uint8_t>(rounded - (120u << 3)));
}

}  // namespace cuda_on_host

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t, __nv_fp8_interpretation_t) {
  return cuda_on_host::FloatToE4m3(x);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t, __nv_fp8_interpretation_t) {
  return static_cast<uint16_t>(cuda_on_host::FloatToE4m3(x.x) | cuda_on_host::FloatToE4m3(x.y) << 8);
}
