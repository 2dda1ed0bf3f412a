#ifndef FOREDRAFT_KERNELS_CUDA_QUANTIZE_FOUR_H_
#define FOREDRAFT_KERNELS_CUDA_QUANTIZE_FOUR_H_

// Quantising inside a kernel (kernels/tensor.h, QuantizedRows): one warp has one group of 128 columns, four
// adjacent ones per lane. The one place that says how, so that a norm which quantises its own output gives
// the bits of the norm and QuantizeRows after it.

#include <cuda_fp8.h>

#include "kernels/cuda/fours.h"
#include "kernels/dtype.h"

namespace foredraft::cuda {

inline constexpr float kSmallestAmax = 1e-4f;

// Of a group whose largest |x| is amax, at least kSmallestAmax.
__device__ __forceinline__ float QuantScale(float amax) {
  constexpr float kLargestCode = 448.0f;
  return __fdiv_rn(amax, kLargestCode);
}
__device__ __forceinline__ uint32_t QuantCode(float x, float scale) {
  return __nv_cvt_float_to_fp8(__fdiv_rn(x, scale), __NV_SATFINITE, __NV_E4M3);
}

// What BF16 keeps of the four.
__device__ __forceinline__ Four Rounded(const Four& x) {
  return {
      {ToFloat(ToBf16(x.x[0])), ToFloat(ToBf16(x.x[1])), ToFloat(ToBf16(x.x[2])), ToFloat(ToBf16(x.x[3]))}};
}

// Columns first .. first + 3 of a row: BF16 values, 0 past the last column. Called by all lanes of the warp,
// whose first lane has a multiple of 128.
__device__ __forceinline__ void StoreQuantized(const QuantizedRows& out, int64_t row, int32_t first,
                                               const Four& x) {
  float amax = kSmallestAmax;
#pragma unroll
  for (int i = 0; i < 4; ++i) amax = fmaxf(amax, fabsf(x.x[i]));  // a NaN loses here and stays in its code
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
  if (threadIdx.x % 32 == 0 && first < out.cols)
    out.scales[first / kQuantGroup * out.scale_pitch + row] = scale;
}

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_QUANTIZE_FOUR_H_
