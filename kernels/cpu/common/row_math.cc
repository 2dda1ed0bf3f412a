#include "kernels/cpu/common/row_math.h"

#include "kernels/cpu/common/vector_math.h"

namespace foredraft::cpu {

FOREDRAFT_WIDE void ScaleToBf16(const float* x, float factor, int64_t count, bf16* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ToBf16(x[i] * factor);
}

FOREDRAFT_WIDE void RoundToBf16(const float* x, int64_t count, bf16* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ToBf16(x[i]);
}

FOREDRAFT_WIDE void ToFloats(const bf16* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ToFloat(x[i]);
}

FOREDRAFT_WIDE void NormToBf16(const float* x, const float* weight, float eps, int64_t count, bf16* out) {
  const float factor = RmsFactor(x, count, eps);
  for (int64_t i = 0; i < count; ++i) out[i] = ToBf16(weight[i] * (x[i] * factor));
}

}  // namespace foredraft::cpu
