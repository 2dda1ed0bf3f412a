#pragma once

// Quantisation inside a kernel (kernels/tensor.h, QuantizedRows): a warp has one group of 128 columns, four
// adjacent ones per lane. All kernels that quantise use these functions, so a fused norm gives the same bits
// as the norm followed by QuantizeRows.

#include <cuda_fp8.h>

#include "kernels/cuda/common/vec4.h"
#include "kernels/dtype.h"

namespace foredraft::cuda {

inline constexpr float kSmallestAmax = 1e-4f;

// The scale of a group whose largest |x|, or kSmallestAmax if larger, is amax.
__device__ __forceinline__ float QuantScale(float amax) {
  constexpr float kLargestCode = 448.0f;
  return __fdiv_rn(amax, kLargestCode);
}
__device__ __forceinline__ uint32_t QuantCode(float x, float scale) {
  return __nv_cvt_float_to_fp8(__fdiv_rn(x, scale), __NV_SATFINITE, __NV_E4M3);
}

// x rounded to BF16.
__device__ __forceinline__ Vec4 Rounded(const Vec4& x) {
  return {
      {ToFloat(ToBf16(x.x[0])), ToFloat(ToBf16(x.x[1])), ToFloat(ToBf16(x.x[2])), ToFloat(ToBf16(x.x[3]))}};
}

// Quantises and stores columns [first, first + 4) of a row: x has BF16 values, 0 past the last column. Called
// by all lanes of the warp; `first` of lane 0 is a multiple of 128.
__device__ __forceinline__ void StoreQuantized(const QuantizedRows& out, int64_t row, int32_t first,
                                               const Vec4& x) {
  float amax = kSmallestAmax;
#pragma unroll
  for (int i = 0; i < 4; ++i) amax = fmaxf(amax, fabsf(x.x[i]));  // fmaxf ignores NaN; its code is NaN
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, distance));
  }
  const float scale = QuantScale(amax);
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes |= QuantCode(x.x[i], scale) << (8 * i);
  }
  if (first < out.cols) *reinterpret_cast<uint32_t*>(out.codes + row * out.pitch + first) = codes;
  if (threadIdx.x % 32 == 0 && first < out.cols) {
    out.scales[first / kQuantGroup * out.scale_pitch + row] = scale;
  }
}

}  // namespace foredraft::cuda
