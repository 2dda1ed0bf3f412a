#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/device/kernels.h"
#include "kernels/cpu/gemm/gemm_driver.h"

namespace foredraft::cpu {

void Gemm(const CpuContext& context, const GemmParams& p) {
  CHECK_EQ(p.x.cols, p.weight.k);
  const int64_t row_tiles = (p.x.rows + kMaxTileRows - 1) / kMaxTileRows;
  const TileInputs inputs(context, p.weight, p.x, p.x.rows);
  const auto x_row = [&](int64_t r) { return inputs.row(r); };
  const auto store = [&](int64_t r, int32_t first, int32_t count, const float* values) {
    float biased[kPanelWidth];
    if (p.bias != nullptr) {
      for (int32_t i = 0; i < count; ++i) biased[i] = values[i] + p.bias[first + i];
      values = biased;
    }
    if (p.out) std::copy_n(values, count, p.out.row(r) + first);
    if (p.out_bf16) RoundToBf16(values, count, p.out_bf16.row(r) + first);
  };
  const int64_t cost = TileCost(p.weight, std::min(p.x.rows, kMaxTileRows));
  const TileGrid grid{.panels = HeaderOf(p.weight).panel_count, .row_tiles = row_tiles};
  ForEachTile(context, grid, cost, [&](int64_t, int64_t panel, int64_t row_tile) {
    const int64_t row = row_tile * kMaxTileRows;
    const PanelProduct product(context.isa, p.weight, panel, inputs.rounded());
    ComputeTiles(product, row, std::min<int64_t>(row + kMaxTileRows, p.x.rows), x_row, store);
  });
}

}  // namespace foredraft::cpu
