#pragma once

// The part of CUDA's BF16 type that is used. Kernels should use bf16 of kernels/dtype.h, which has the same
// bits.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/dtype.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline constexpr float __bfloat162float(__nv_bfloat16 x) {
  return foredraft::ToFloat(foredraft::bf16{x.bits});
}
inline constexpr __nv_bfloat16 __float2bfloat16_rn(float x) { return {foredraft::ToBf16(x).bits}; }
inline constexpr __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
inline constexpr __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline constexpr uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline constexpr __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) { return {bits}; }
inline constexpr __nv_bfloat16 __hmul(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __float2bfloat16_rn(__bfloat162float(x) * __bfloat162float(y));  // the product of floats is exact
}
inline constexpr __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {__hmul(a.x, b.x), __hmul(a.y, b.y)};
}
