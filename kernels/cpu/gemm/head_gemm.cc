#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/device/kernels.h"
#include "kernels/cpu/gemm/gemm_driver.h"

namespace foredraft::cpu {

void HeadGemm(const CpuContext& context, const HeadGemmParams& p) {
  if (p.heads.count == 0) return;
  const int64_t row_tiles = (p.x.rows + kMaxTileRows - 1) / kMaxTileRows;
  const int64_t cost = TileCost(p.heads.first, std::min(p.x.rows, kMaxTileRows));
  const TileGrid grid{
      .weights = p.heads.count, .panels = HeaderOf(p.heads.first).panel_count, .row_tiles = row_tiles};
  ForEachTile(context, grid, cost, [&](int64_t head, int64_t panel, int64_t row_tile) {
    const int64_t row = row_tile * kMaxTileRows;
    const auto x_row = [&](int64_t r) { return &p.x.row(r)[head * p.x_head_stride].bits; };
    const auto store = [&](int64_t r, int32_t first, int32_t count, const float* values) {
      RoundToBf16(values, count, p.out.row(r) + head * p.out_head_stride + first);
    };
    const PanelProduct product(context.isa, p.heads.items[head], panel, /*rounded=*/false);
    ComputeTiles(product, row, std::min<int64_t>(row + kMaxTileRows, p.x.rows), x_row, store);
  });
}

}  // namespace foredraft::cpu
