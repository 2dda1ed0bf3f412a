#pragma once

// Arithmetic on two BF16 in a 32-bit word. Results are rounded to nearest; subnormal numbers are kept.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace foredraft::cuda {

__device__ __forceinline__ __nv_bfloat162 Bf16x2(uint32_t bits) {
  __nv_bfloat162 pair;
  memcpy(&pair, &bits, sizeof(pair));
  return pair;
}
__device__ __forceinline__ uint32_t BitsOf(__nv_bfloat162 pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

__device__ __forceinline__ uint32_t SubBf16x2(uint32_t a, uint32_t b) {
  return BitsOf(__hsub2(Bf16x2(a), Bf16x2(b)));
}
__device__ __forceinline__ uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  return BitsOf(__hmul2(Bf16x2(a), Bf16x2(b)));
}

}  // namespace foredraft::cuda
