// rotate_heads, write_keys: one pass over each row.

#include <cstring>

#include "kernels/cpu/attention/kv_row_math.h"
#include "kernels/cpu/attention/rope.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

FOREDRAFT_WIDE float NormFactor(const float* x, int64_t count, float eps) { return RmsFactor(x, count, eps); }

FOREDRAFT_WIDE void NormRow(const float* x, const float* weight, float eps, int64_t count, float* out) {
  const float factor = RmsFactor(x, count, eps);
  for (int64_t i = 0; i < count; ++i) out[i] = weight[i] * (x[i] * factor);
}

FOREDRAFT_WIDE void Scale(const float* x, float factor, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] * factor;
}

}  // namespace

void RotateHeads(const CpuContext& context, const RotateHeadsParams& p) {
  const int32_t kept = p.head_dim - p.rope_dim;
  const int64_t cost = int64_t{4} * p.head_count * p.head_dim;
  context.pool.ParallelFor(p.index.rows, cost, [&](int64_t begin, int64_t end) {
    float* const scaled = ThreadScratch<float>(p.head_dim);
    for (int64_t r = begin; r < end; ++r) {
      if (p.index.slots[r] < 0) continue;
      const float* cos_sin = p.cos_sin + int64_t{p.index.positions[r]} * p.rope_dim;
      for (int64_t head = 0; head < p.head_count; ++head) {
        const float* x = p.x.row(r) + head * p.head_dim;
        bf16* const out = p.out.row(r) + head * p.head_dim;
        if (p.norm != 0) {
          Scale(x, NormFactor(x, p.head_dim, p.eps), p.head_dim, scaled);
          x = scaled;
        }
        RoundToBf16(x, kept, out);
        RotatePairs(x + kept, cos_sin, p.inverse != 0 ? -1.0f : 1.0f, p.rope_dim, out + kept);
      }
    }
  });
}

void WriteKeys(const CpuContext& context, const WriteKeysParams& p) {
  const int32_t width = p.layout.width();
  context.pool.ParallelFor(p.index.rows, 4 * width, [&](int64_t begin, int64_t end) {
    float* const normed = ThreadScratch<float>(width);
    for (int64_t r = begin; r < end; ++r) {
      const int32_t slot = p.index.slots[r];
      if (slot < 0) continue;
      const int32_t position = p.index.positions[r];
      uint8_t* const key = p.keys.row(r);
      NormRow(p.kv.row(r), p.norm_weight, p.eps, width, normed);
      WriteKeyRow(normed, p.cos_sin + int64_t{position} * p.layout.rope_dim, p.layout, key);
      uint8_t* const cached = p.window.row(slot, position);
      if (cached != nullptr) std::memcpy(cached, key, p.layout.bytes());
    }
  });
}

}  // namespace foredraft::cpu
