#pragma once

// The loop over tiles of rows x panels that gemm, head_gemm and grouped_gemm share. All sums are computed by
// the tile kernel (kernels/cpu/device/isa.h), so the three give a row the same bits.

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/device/kernels.h"
#include "kernels/cpu/gemm/int8_rows.h"
#include "kernels/cpu/gemm/packed_weight.h"

namespace foredraft::cpu {

// Multiplies rows by one panel. Sets `args.table`; the caller sets the other members.
using WeightProduct = void (*)(const IsaKernels& isa, GemmTileArgs& args);

// The product with a panel of a weight in a format that HasKernels takes (weight_product.cc lists them). If
// the weight has canonical segments, it sums their products (kernels/rules/weight_segments.h).
class PanelProduct {
 public:
  // rounded: whether TileInputs has rounded the rows.
  PanelProduct(const IsaKernels& isa, const PackedWeight& weight, int64_t panel, bool rounded);

  // tile[row][32] = x[row] times the panel, for `rows` rows, 1 to kMaxTileRows. Moves the pointers in x.
  void Multiply(const uint16_t** x, int32_t rows, float* tile) const;

  int32_t first_output() const { return first_output_; }
  int32_t outputs() const { return outputs_; }  // up to kPanelWidth

 private:
  const IsaKernels& isa_;
  const WeightProduct product_;
  GemmTileArgs first_{};         // of the first segment, without x, rows and tile
  const int32_t segments_;       // 1 where the weight has none
  bool short_segments_ = false;  // short BF16 segments that isa_.gemm_bf16_segments takes
  int64_t segment_bytes_ = 0;    // from a segment of the panel to the next
  int64_t segment_scales_ = 0;   // FP8: floats from the scales of a segment to the next one's
  int64_t segment_x_ = 0;        // elements from a segment of a row to the next
  const int32_t first_output_;
  const int32_t outputs_;
};

// The cost of one tile in the thread pool's unit, a scalar operation: about 1/16 per multiply-add if compute
// bound, about 1/8 per byte of weights if memory bound.
inline int64_t TileCost(const PackedWeight& weight, int64_t rows) {
  const int64_t computing = rows * weight.k * kPanelWidth / 16;
  return std::max<int64_t>({1, computing, HeaderOf(weight).panel_bytes / 8});
}

// The tiles of `weights` weights of one shape: each has `panels` panels x `row_tiles` tiles of rows.
struct TileGrid {
  int64_t weights = 1;
  int64_t panels = 0;
  int64_t row_tiles = 1;
};

// Calls body(weight, panel, row_tile) for all tiles on the pool's threads. A node's threads begin with the
// panels in its memory, weight by weight.
template <class Body>
void ForEachTile(const CpuContext& context, const TileGrid& grid, int64_t cost, const Body& body) {
  ThreadPool& pool = context.pool;
  const int64_t per_panel = grid.weights * grid.row_tiles;
  pool.ParallelForPanels(grid.panels, per_panel, cost, [&](int64_t begin, int64_t end) {
    for (int node = 0; begin < end; ++node) {
      const int64_t first = pool.FirstPanel(grid.panels, node);
      const int64_t panels = pool.FirstPanel(grid.panels, node + 1) - first;
      const int64_t node_end = std::min(end, (first + panels) * per_panel);
      for (; begin < node_end; ++begin) {
        const int64_t tile = begin - first * per_panel;
        const int64_t column = tile / grid.row_tiles;
        body(column / panels, first + column % panels, tile % grid.row_tiles);
      }
    }
    if (context.isa.end_gemm != nullptr) context.isa.end_gemm();
  });
}

// Computes rows [row_begin, row_end) of a panel. x_row(r) returns the input row r, as GemmTileArgs::x;
// store(r, first, count, values) receives outputs [first, first + count) of row r.
template <class XRow, class Store>
void ComputeTiles(const PanelProduct& product, int64_t row_begin, int64_t row_end, const XRow& x_row,
                  const Store& store) {
  alignas(64) float tile[kMaxTileRows * kPanelWidth];
  const uint16_t* x[kMaxTileRows];
  for (int64_t row = row_begin; row < row_end; row += kMaxTileRows) {
    const auto rows = static_cast<int32_t>(std::min<int64_t>(kMaxTileRows, row_end - row));
    for (int32_t i = 0; i < rows; ++i) x[i] = x_row(row + i);
    product.Multiply(x, rows, tile);
    for (int32_t i = 0; i < rows; ++i) {
      store(row + i, product.first_output(), product.outputs(), tile + i * kPanelWidth);
    }
  }
}

}  // namespace foredraft::cpu
