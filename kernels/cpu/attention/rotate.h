#pragma once

// The rotation of DeepSeek-V4's ops.

#include <cstdint>

#include "kernels/dtype.h"

namespace foredraft::cpu {

// Rotates interleaved pairs (2i, 2i + 1) of x in FP32 and rounds; sign -1 rotates back. cos_sin: [rope_dim /
// 2, 2].
inline void RotatePairs(const float* x, const float* cos_sin, float sign, int32_t rope_dim, bf16* out) {
  for (int32_t i = 0; i < rope_dim; i += 2) {
    const float cos = cos_sin[i];
    const float sin = sign * cos_sin[i + 1];
    out[i] = ToBf16(x[i] * cos - x[i + 1] * sin);
    out[i + 1] = ToBf16(x[i] * sin + x[i + 1] * cos);
  }
}

}  // namespace foredraft::cpu
