#pragma once

// Loops over one row that several ops share. Each gives the same bits on every machine (vector_math.h).

#include <cstdint>

#include "kernels/dtype.h"

namespace foredraft::cpu {

// out = BF16(x * factor)
void ScaleToBf16(const float* x, float factor, int64_t count, bf16* out);

// out = BF16(x)
void RoundToBf16(const float* x, int64_t count, bf16* out);

// out = x
void ToFloats(const bf16* x, int64_t count, float* out);

// out = BF16(weight * (x * factor)), factor = RmsFactor(x): the RMS norm of rms_norm and kv_write.
void NormToBf16(const float* x, const float* weight, float eps, int64_t count, bf16* out);

}  // namespace foredraft::cpu
