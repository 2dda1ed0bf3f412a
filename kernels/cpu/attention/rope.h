#pragma once

// RoPE on interleaved pairs (2i, 2i + 1). A row of cos_sin is [rope_dim / 2, 2].

#include <cstdint>

#include "kernels/dtype.h"

namespace foredraft::cpu {

// Rotates x in FP32 and rounds; sign -1 rotates back. Always inlined, to be compiled for the caller's
// register width.
[[gnu::always_inline]] inline void RotatePairs(const float* x, const float* cos_sin, float sign,
                                               int32_t rope_dim, bf16* out) {
  for (int32_t i = 0; i < rope_dim; i += 2) {
    const float cos = cos_sin[i];
    const float sin = sign * cos_sin[i + 1];
    out[i] = ToBf16(x[i] * cos - x[i + 1] * sin);
    out[i + 1] = ToBf16(x[i] * sin + x[i + 1] * cos);
  }
}

}  // namespace foredraft::cpu
