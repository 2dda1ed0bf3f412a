#pragma once

// Quantisation inside a kernel (kernels/tensor.h, QuantizedRows): a warp has one group of 128 columns, four
// adjacent ones per lane. All kernels that quantise use these functions, so a fused norm gives the same bits
// as the norm followed by QuantizeRows.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <limits>

#include "kernels/cuda/common/vec4.h"
#include "kernels/dtype.h"

namespace foredraft::cuda {

inline constexpr float kSmallestAmax = 1e-4f;

// x / divisor, rounded to nearest, in five dependent operations and without a branch: other threads' and
// columns' quotients fill their latency, which they cannot where each division tests for its slow case.
// `reciprocal` is 1 / divisor rounded. The first correction is within a unit in the last place, and from such
// a quotient the second one is exact (Markstein, "Computation of elementary functions on the IBM RISC
// System/6000 processor", 1990), unless something leaves the normal floats: divisors are from
// kSmallestAmax / 448 to FLT_MAX / 448, and a quotient too small for this has code 0 either way. The
// corrections would lose the sign of a zero. For a divisor of infinity the caller passes 0 and a reciprocal
// of 0: the quotients are 0, or NaN for an x that is not finite.
__device__ __forceinline__ float Quotient(float x, float divisor, float reciprocal) {
  float quotient = __fmul_rn(x, reciprocal);
  quotient = __fmaf_rn(__fmaf_rn(-divisor, quotient, x), reciprocal, quotient);
  quotient = __fmaf_rn(__fmaf_rn(-divisor, quotient, x), reciprocal, quotient);
  return copysignf(quotient, x);
}

// The scale of a group, and the codes of its numbers. amax: the largest |x| of the group, at least
// kSmallestAmax.
class QuantScale {
 public:
  QuantScale() = default;
  __device__ __forceinline__ explicit QuantScale(float amax) {
    constexpr float kLargestCode = 448.0f;
    const bool finite = amax < std::numeric_limits<float>::infinity();
    scale_ = finite ? Quotient(amax, kLargestCode, 1.0f / kLargestCode) : amax;
    divisor_ = finite ? scale_ : 0.0f;
    reciprocal_ = __frcp_rn(scale_);
  }
  __device__ __forceinline__ float scale() const { return scale_; }
  __device__ __forceinline__ uint32_t Code(float x) const {
    return __nv_cvt_float_to_fp8(Quotient(x, divisor_, reciprocal_), __NV_SATFINITE, __NV_E4M3);
  }

 private:
  float scale_, divisor_, reciprocal_;
};

// x rounded to BF16.
__device__ __forceinline__ Vec4 Rounded(const Vec4& x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x[0], x.x[1]);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.x[2], x.x[3]);
  return {
      {__bfloat162float(low.x), __bfloat162float(low.y), __bfloat162float(high.x), __bfloat162float(high.y)}};
}

// Quantises and stores columns [first + i step, + 4) of a row from x[i], i < n: x has BF16 values, 0 past the
// last column. Called by all lanes of the warp; `first` of lane 0 and `step` are multiples of 128. The n
// groups are quantised side by side.
template <int n>
__device__ __forceinline__ void StoreQuantized(const QuantizedRows& out, int64_t row, int32_t first,
                                               int32_t step, const Vec4 (&x)[n]) {
  QuantScale scales[n];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    float amax = kSmallestAmax;
#pragma unroll
    for (int j = 0; j < 4; ++j) amax = fmaxf(amax, fabsf(x[i].x[j]));  // fmaxf ignores NaN; its code is NaN
    // Positive floats have the order of their bits.
    amax = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(amax)));
    scales[i] = QuantScale(amax);
  }
#pragma unroll
  for (int i = 0; i < n; ++i) {
    uint32_t codes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) codes |= scales[i].Code(x[i].x[j]) << (8 * j);
    const int32_t column = first + i * step;
    if (column >= out.cols) continue;
    *reinterpret_cast<uint32_t*>(out.codes + row * out.pitch + column) = codes;
    if (threadIdx.x % 32 == 0) out.scales[column / kQuantGroup * out.scale_pitch + row] = scales[i].scale();
  }
}

__device__ __forceinline__ void StoreQuantized(const QuantizedRows& out, int64_t row, int32_t first,
                                               const Vec4& x) {
  const Vec4 one[1] = {x};
  StoreQuantized(out, row, first, 0, one);
}

}  // namespace foredraft::cuda
