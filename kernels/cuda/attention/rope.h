#pragma once

// RoPE on interleaved pairs (2i, 2i + 1). A row of cos_sin is [rope_dim / 2, 2]. sign -1 rotates back.

#include <cstdint>

#include "kernels/cuda/common/vec4.h"

namespace foredraft::cuda {

// Rotates (x0, x1) by the angle of its pair. Products and sums are rounded separately, as on the CPU.
__device__ __forceinline__ float2 Rotated(float x0, float x1, float cos, float sin) {
  return make_float2(__fsub_rn(__fmul_rn(x0, cos), __fmul_rn(x1, sin)),
                     __fadd_rn(__fmul_rn(x0, sin), __fmul_rn(x1, cos)));
}

// The rotated element i of rope_dim; its pair is (i & ~1, i | 1).
__device__ __forceinline__ float RotatedElement(const float* x, const float* cos_sin, int32_t i) {
  const int32_t pair = i & ~1;
  const float2 rotated = Rotated(x[pair], x[pair + 1], cos_sin[pair], cos_sin[pair + 1]);
  return i == pair ? rotated.x : rotated.y;
}

// Elements first .. first + 3; `first` is a multiple of 4.
__device__ __forceinline__ Vec4 RotatedVec4(const Vec4& x, const Vec4& cos_sin, float sign = 1.0f) {
  const float2 low = Rotated(x.x[0], x.x[1], cos_sin.x[0], sign * cos_sin.x[1]);
  const float2 high = Rotated(x.x[2], x.x[3], cos_sin.x[2], sign * cos_sin.x[3]);
  return {{low.x, low.y, high.x, high.y}};
}

// A row whose last rope_dim values are rotated.
struct TailRotation {
  const float* cos_sin;  // of the row's position
  int32_t width;
  int32_t rope_dim;
  float sign;

  // Columns [first, first + 4) after the rotation. x: before it; element(i): column i before it; the
  // row has both columns of a pair. `aligned`: width and rope_dim are multiples of 4, cos_sin is 16-byte
  // aligned.
  template <bool aligned, class Element>
  __device__ __forceinline__ Vec4 Apply(Vec4 x, int32_t first, const Element& element) const {
    const int32_t kept = width - rope_dim;
    if constexpr (aligned) {  // the four columns are all rotated or all kept
      if (first >= kept) x = RotatedVec4(x, LoadVec4<true>(cos_sin, first - kept, rope_dim), sign);
    } else {
      for (int j = 0; j < 4 && first + j < width; ++j) {
        const int32_t i = first + j - kept;
        if (i < 0) continue;
        const int32_t pair = i & ~1;
        const float2 rotated =
            Rotated(element(kept + pair), element(kept + pair + 1), cos_sin[pair], sign * cos_sin[pair + 1]);
        x.x[j] = i == pair ? rotated.x : rotated.y;
      }
    }
    return x;
  }
};

inline bool IsRotationAligned(const float* cos_sin, int32_t width, int32_t rope_dim) {
  return width % 4 == 0 && IsVec4Aligned(cos_sin, rope_dim, rope_dim);
}

}  // namespace foredraft::cuda
