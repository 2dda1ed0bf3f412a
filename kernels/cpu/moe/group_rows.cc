#include <algorithm>

#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {

// A counting sort on the calling thread: two passes over rows x top_k small numbers.
void GroupRows(const CpuContext&, const GroupRowsParams& p) {
  const int64_t pairs = static_cast<int64_t>(p.rows) * p.top_k;
  // Index among this rank's experts; -1: another rank's expert, or an idle row.
  const auto local_expert = [&p](int64_t pair) {
    const int32_t expert = p.expert_ids[pair] - p.first_expert;
    return p.expert_ids[pair] >= 0 && expert >= 0 && expert < p.expert_count ? expert : -1;
  };
  std::fill_n(p.expert_offsets, p.expert_count + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) {
    if (const int32_t expert = local_expert(i); expert >= 0) ++p.expert_offsets[expert + 1];
  }
  for (int32_t e = 0; e < p.expert_count; ++e) p.expert_offsets[e + 1] += p.expert_offsets[e];
  int32_t* next = ThreadScratch<int32_t>(p.expert_count);
  std::copy_n(p.expert_offsets, p.expert_count, next);
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t expert = local_expert(i);
    if (expert < 0) {
      p.grouped_index[i] = -1;
      continue;
    }
    const int32_t grouped = next[expert]++;
    p.grouped_index[i] = grouped;
    p.grouped_rows[grouped] = static_cast<int32_t>(i / p.top_k);
  }
}

}  // namespace foredraft::cpu
