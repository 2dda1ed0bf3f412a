#include <algorithm>

#include "kernels/cpu/kernels.h"

namespace foredraft::cpu {
namespace {

constexpr int kGroups = 8;
constexpr int32_t kColumnBlock = 64;

// A column block of one row. Product and sum are rounded separately (no fused multiply-add).
void CombineBlock(const CombineExpertsParams& p, int64_t r, int32_t first, int32_t count) {
  float groups[kGroups][kColumnBlock] = {};
  const int32_t* ids = p.expert_ids + r * p.top_k;
  const int32_t* places = p.grouped_index + r * p.top_k;
  const float* weights = p.expert_weights + r * p.top_k;
  int32_t choice = 0;
  for (int64_t g = 0; g < kGroups; ++g) {
    const int64_t group_end = (g + 1) * p.expert_count / kGroups;
    for (; choice < p.top_k && ids[choice] < group_end; ++choice) {
      if (places[choice] < 0) continue;
      const float* x = p.expert_out.row(places[choice]) + first;
      for (int32_t i = 0; i < count; ++i) groups[g][i] += weights[choice] * x[i];
    }
    for (int32_t i = 0; i < count; ++i) groups[g][i] = ToFloat(ToBf16(groups[g][i]));
  }
  float* hidden = p.hidden.row(r) + first;
  const float* shared = p.shared ? p.shared.row(r) + first : nullptr;
  for (int32_t i = 0; i < count; ++i) {
    float sum = ((groups[0][i] + groups[1][i]) + (groups[2][i] + groups[3][i])) +
                ((groups[4][i] + groups[5][i]) + (groups[6][i] + groups[7][i]));
    if (shared != nullptr) sum = shared[i] + sum;
    hidden[i] += sum;
  }
}

}  // namespace

void CombineExperts(const CpuContext& context, const CombineExpertsParams& p) {
  const int32_t width = p.hidden.cols;
  const int64_t cost = static_cast<int64_t>(width) * (p.top_k + 4);
  context.pool.ParallelFor(p.hidden.rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (p.expert_ids[r * p.top_k] < 0) continue;  // an idle row
      for (int32_t first = 0; first < width; first += kColumnBlock) {
        CombineBlock(p, r, first, std::min(kColumnBlock, width - first));
      }
    }
  });
}

}  // namespace foredraft::cpu
