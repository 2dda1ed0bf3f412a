#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/device/kernels.h"
#include "kernels/cpu/gemm/gemm_driver.h"

namespace foredraft::cpu {

void GroupedGemm(const CpuContext& context, const GroupedGemmParams& p) {
  const int64_t rows = p.expert_offsets[p.experts.count];
  if (rows == 0) return;
  // Only experts with rows get work items; most may have none.
  int32_t* chosen = ThreadScratch<int32_t>(p.experts.count);
  int64_t chosen_count = 0;
  for (int32_t expert = 0; expert < p.experts.count; ++expert) {
    if (p.expert_offsets[expert] < p.expert_offsets[expert + 1]) chosen[chosen_count++] = expert;
  }
  const TileGrid grid{.weights = chosen_count, .panels = HeaderOf(p.experts.first).panel_count};
  const int64_t cost = TileCost(p.experts.first, rows / chosen_count);
  const TileInputs inputs(context, p.experts.first, p.x, p.x_rows != nullptr ? p.x.rows : rows);
  const auto x_row = [&](int64_t g) { return inputs.row(p.x_rows != nullptr ? p.x_rows[g] : g); };
  const auto store = [&](int64_t g, int32_t first, int32_t count, const float* values) {
    std::copy_n(values, count, p.out.row(g) + first);
  };
  ForEachTile(context, grid, cost, [&](int64_t index, int64_t panel, int64_t) {
    const int32_t expert = chosen[index];
    const PanelProduct product(context.isa, p.experts.items[expert], panel, inputs.rounded());
    ComputeTiles(product, p.expert_offsets[expert], p.expert_offsets[expert + 1], x_row, store);
  });
}

}  // namespace foredraft::cpu
