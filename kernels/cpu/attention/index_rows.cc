// rope_index_query, index_key_write: queries and keys of the indexer.

#include <cmath>

#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"
#include "kernels/leading_rotation.h"

namespace foredraft::cpu {
namespace {

// Rotates x in FP32 and rounds it. The `low` and `high` of all pairs cover the rotated part once.
void RotateLeading(const float* x, const float* cos_sin, const LeadingRotation& rotation, int32_t width,
                   bf16* out) {
  for (int32_t angle = 0; angle < rotation.rope_dim / 2; ++angle) {
    const auto [low, high, own] = rotation.PairOf(rotation.interleaved ? 2 * angle : angle);
    const float cos = cos_sin[2 * own], sin = cos_sin[2 * own + 1];
    out[low] = ToBf16(x[low] * cos - x[high] * sin);
    out[high] = ToBf16(x[low] * sin + x[high] * cos);
  }
  RoundToBf16(x + rotation.rope_dim, width - rotation.rope_dim, out + rotation.rope_dim);
}

FOREDRAFT_WIDE void LayerNorm(const float* x, const float* weight, const float* bias, float eps,
                              int64_t count, float* out) {
  const float mean = LaneSum(count, [x](int64_t i) { return x[i]; }) / static_cast<float>(count);
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] - mean;
  const float factor = RmsFactor(out, count, eps);
  for (int64_t i = 0; i < count; ++i) out[i] = weight[i] * (out[i] * factor) + bias[i];
}

}  // namespace

void RopeIndexQuery(const CpuContext& context, const RopeIndexQueryParams& p) {
  const LeadingRotation rotation = {p.rope_dim, p.interleaved != 0};
  const int64_t cost = int64_t{2} * p.head_count * p.head_dim;
  context.pool.ParallelFor(p.index.rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (p.index.slots[r] < 0) continue;
      const float* const cos_sin = p.cos_sin + int64_t{p.index.positions[r]} * p.rope_dim;
      for (int64_t head = 0; head < p.head_count; ++head) {
        const int64_t at = head * p.head_dim;
        RotateLeading(p.q.row(r) + at, cos_sin, rotation, p.head_dim, p.out.row(r) + at);
      }
    }
  });
}

void IndexKeyWrite(const CpuContext& context, const IndexKeyWriteParams& p) {
  const LeadingRotation rotation = {p.rope_dim, p.interleaved != 0};
  const int32_t width = p.k.cols;
  context.pool.ParallelFor(p.index.rows, 6 * width, [&](int64_t begin, int64_t end) {
    float* const normed = ThreadScratch<float>(width);
    for (int64_t r = begin; r < end; ++r) {
      const int32_t slot = p.index.slots[r];
      if (slot < 0) continue;
      const int32_t position = p.index.positions[r];
      bf16* const key = p.keys.row(slot, position);
      if (key == nullptr) continue;
      LayerNorm(p.k.row(r), p.norm_weight, p.norm_bias, p.eps, width, normed);
      RotateLeading(normed, p.cos_sin + int64_t{position} * p.rope_dim, rotation, width, key);
    }
  });
}

}  // namespace foredraft::cpu
