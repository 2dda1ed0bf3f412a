#include <algorithm>

#include "kernels/cpu/expert_groups.h"
#include "kernels/cpu/kernels.h"

namespace foredraft::cpu {
namespace {

// A column block of one row: the value of the subtree over this rank's groups.
template <int group_count>
void SumBlock(const ExpertPartialsParams& p, const RowChoices& row, int64_t r, int32_t first, int32_t count) {
  float groups[group_count][kColumnBlock];
  SumGroups(row, p.first_group, first, count, groups);
  for (int32_t i = 0; i < count; ++i) {
    const float sum = AddTree<group_count>(groups, i);
    if (p.out) p.out.row(r)[first + i] = sum;
    if (p.out_bf16) p.out_bf16.row(r)[first + i] = ToBf16(sum);
  }
}

using SumBlockFn = void (*)(const ExpertPartialsParams& p, const RowChoices& row, int64_t r, int32_t first,
                            int32_t count);

SumBlockFn SumBlockOf(int32_t group_count) {
  switch (group_count) {
    case 1:
      return SumBlock<1>;
    case 2:
      return SumBlock<2>;
    case 4:
      return SumBlock<4>;
    default:
      CHECK_EQ(group_count, kExpertGroups);
      return SumBlock<kExpertGroups>;
  }
}

}  // namespace

void ExpertPartials(const CpuContext& context, const ExpertPartialsParams& p) {
  const int32_t rows = p.out ? p.out.rows : p.out_bf16.rows;
  const int32_t width = p.out ? p.out.cols : p.out_bf16.cols;
  // More than one BF16 group is a sum that BF16 cannot hold.
  CHECK(!p.out_bf16 || p.group_count == 1);
  const SumBlockFn sum_block = SumBlockOf(p.group_count);
  const int64_t cost = static_cast<int64_t>(width) * (p.top_k * p.group_count / kExpertGroups + 2);
  context.pool.ParallelFor(rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const RowChoices row = {p.expert_out,
                              p.expert_ids + r * p.top_k,
                              p.grouped_index + r * p.top_k,
                              p.expert_weights + r * p.top_k,
                              p.top_k,
                              p.expert_count};
      if (row.ids[0] < 0) continue;  // an idle row
      for (int32_t first = 0; first < width; first += kColumnBlock) {
        sum_block(p, row, r, first, std::min(kColumnBlock, width - first));
      }
    }
  });
}

}  // namespace foredraft::cpu
