#include <algorithm>

#include "kernels/cpu/expert_groups.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/wide.h"

namespace foredraft::cpu {
namespace {

// A column block of one row.
FOREDRAFT_WIDE void CombineBlock(const CombineExpertsParams& p, int64_t r, int32_t first, int32_t count) {
  const RowChoices row = {p.expert_out,
                          p.expert_ids + r * p.top_k,
                          p.grouped_index + r * p.top_k,
                          p.expert_weights + r * p.top_k,
                          p.top_k,
                          p.expert_count};
  float groups[kExpertGroups][kColumnBlock];
  SumGroups(row, 0, first, count, groups);
  float* hidden = p.hidden.row(r) + first;
  const float* shared = p.shared ? p.shared.row(r) + first : nullptr;
  for (int32_t i = 0; i < count; ++i) {
    float sum = AddTree<kExpertGroups>(groups, i);
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
