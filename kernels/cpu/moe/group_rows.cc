#include <algorithm>

#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {

namespace {

// A pair's index among this rank's experts; -1: another rank's expert, or an idle row.
template <class Params>
int32_t LocalExpert(const Params& p, int64_t pair) {
  const int32_t expert = p.expert_ids[pair] - p.first_expert;
  return p.expert_ids[pair] >= 0 && expert >= 0 && expert < p.expert_count ? expert : -1;
}

}  // namespace

// One pass over rows x top_k small numbers, on the calling thread.
void PartRows(const CpuContext&, const PartRowsParams& p) {
  int64_t own_pairs = 0;
  int32_t part = 0;  // whose first row is known
  p.borders[0] = 0;
  for (int32_t row = 0; row < p.rows; ++row) {
    for (int32_t j = 0; j < p.top_k; ++j) {
      if (LocalExpert(p, int64_t{row} * p.top_k + j) >= 0) ++own_pairs;
    }
    if (own_pairs >= int64_t{part + 1} * p.part_pairs) p.borders[++part] = row + 1;
  }
  std::fill(p.borders + part + 1, p.borders + p.part_count + 1, p.rows);
}

// A counting sort on the calling thread: two passes over rows x top_k small numbers.
void GroupRows(const CpuContext&, const GroupRowsParams& p) {
  const bool all = p.row_range == nullptr;
  const int64_t begin = all ? 0 : int64_t{p.row_range[0]} * p.top_k;
  const int64_t end = int64_t{all ? p.rows : p.row_range[1]} * p.top_k;
  std::fill_n(p.expert_offsets, p.expert_count + 1, 0);
  for (int64_t i = begin; i < end; ++i) {
    if (const int32_t expert = LocalExpert(p, i); expert >= 0) ++p.expert_offsets[expert + 1];
  }
  for (int32_t e = 0; e < p.expert_count; ++e) p.expert_offsets[e + 1] += p.expert_offsets[e];
  int32_t* next = ThreadScratch<int32_t>(p.expert_count);
  std::copy_n(p.expert_offsets, p.expert_count, next);
  for (int64_t i = begin; i < end; ++i) {
    const int32_t expert = LocalExpert(p, i);
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
