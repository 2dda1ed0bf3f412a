#ifndef FOREDRAFT_KERNELS_CPU_GEMM_DRIVER_H_
#define FOREDRAFT_KERNELS_CPU_GEMM_DRIVER_H_

// The loop over tiles of rows x stripes that gemm, head_gemm and grouped_gemm share. All sums are computed by
// the tile kernel (kernels/cpu/isa.h), so the three give a row the same bits.

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/packed_weight.h"

namespace foredraft::cpu {

// The cost of one tile in the thread pool's unit, a scalar operation: about 1/16 per multiply-add if compute
// bound, about 1/8 per byte of weights if memory bound.
inline int64_t TileCost(const PackedWeight& weight, int64_t rows) {
  const int64_t computing = rows * weight.k * kStripeWidth / 16;
  return std::max<int64_t>({1, computing, HeaderOf(weight).stripe_bytes / 8});
}

// Computes rows [row_begin, row_end) of a stripe. x_row(r) returns the input row r; store(r, first, count,
// values) receives outputs [first, first + count) of row r.
template <class XRow, class Store>
void ComputeTiles(const IsaKernels& isa, const PackedWeight& weight, int64_t stripe, int64_t row_begin,
                  int64_t row_end, const XRow& x_row, const Store& store) {
  const PackedHeader& header = HeaderOf(weight);
  const int32_t first_output = static_cast<int32_t>(stripe * kStripeWidth);
  const int32_t outputs = std::min(weight.n - first_output, kStripeWidth);

  alignas(64) float tile[kMaxTileRows * kStripeWidth];
  const uint16_t* x[kMaxTileRows];
  GemmTileArgs args{};
  args.tile = tile;
  args.x = x;
  args.stripe = StripesOf(weight) + stripe * header.stripe_bytes;
  args.k = weight.k;
  args.block_k = header.block_k;
  const bool f8 = weight.dtype == DType::kF8E4M3;
  if (f8) args.scales = weight.scales + stripe * header.k_blocks * kStripeWidth;

  for (int64_t row = row_begin; row < row_end; row += kMaxTileRows) {
    args.rows = static_cast<int32_t>(std::min<int64_t>(kMaxTileRows, row_end - row));
    for (int32_t i = 0; i < args.rows; ++i) x[i] = &x_row(row + i)->bits;
    (f8 ? isa.gemm_f8 : isa.gemm_bf16)(args);
    for (int32_t i = 0; i < args.rows; ++i) store(row + i, first_output, outputs, tile + i * kStripeWidth);
  }
}

}  // namespace foredraft::cpu

#endif  // FOREDRAFT_KERNELS_CPU_GEMM_DRIVER_H_
