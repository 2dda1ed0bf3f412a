#include "kernels/rules/draft_confidence.h"

#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

FOREDRAFT_WIDE float Dot(const float* x, const float* y, int64_t count) {
  return LaneSum(count, [x, y](int64_t i) { return x[i] * y[i]; });
}

}  // namespace

void DraftConfidence(const CpuContext& context, const DraftConfidenceParams& p) {
  const int32_t hidden = p.hidden.cols, rank = p.token_rows.cols;
  context.pool.ParallelFor(p.bucket, hidden + rank, [&](int64_t begin, int64_t end) {
    for (int64_t seat = begin; seat < end; ++seat) {
      const float logit =
          Dot(p.hidden.row(seat), p.weight, hidden) + Dot(p.token_rows.row(seat), p.weight + hidden, rank);
      StoreConfidence(p, static_cast<int32_t>(seat), logit);
    }
  });
}

}  // namespace foredraft::cpu
