#include "kernels/cpu/gemm_driver.h"
#include "kernels/cpu/kernels.h"

namespace foredraft::cpu {

void GroupedGemm(const CpuContext& context, const GroupedGemmParams& p) {
  const int64_t rows = p.expert_offsets[p.experts.count];
  if (rows == 0) return;
  const int64_t stripes = HeaderOf(p.experts.first).stripe_count;
  // Most experts have few rows, many have none: the mean decides what is worth sharing.
  const int64_t cost = std::max<int64_t>(1, TileCost(p.experts.first, rows) / p.experts.count);
  const auto x_row = [&](int64_t g) { return p.x.row(p.x_rows != nullptr ? p.x_rows[g] : g); };
  const auto store = [&](int64_t g, int32_t first, int32_t count, const float* values) {
    std::copy_n(values, count, p.out.row(g) + first);
  };
  context.pool.ParallelFor(p.experts.count * stripes, cost, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t expert = item / stripes;
      if (p.expert_offsets[expert] == p.expert_offsets[expert + 1]) continue;
      ComputeTiles(context.isa, p.experts.items[expert], item % stripes, p.expert_offsets[expert],
                   p.expert_offsets[expert + 1], x_row, store);
    }
  });
}

}  // namespace foredraft::cpu
