#include "kernels/cpu/gemm/gemm_nvfp4.h"

#include <algorithm>

namespace foredraft::cpu {
namespace {

constexpr int64_t kGroupBytes = kNvfp4Group / 2 * kStripeWidth + kStripeWidth;  // codes, then scales

}  // namespace

void ComputeNvfp4Tile(const IsaKernels& isa, const GemmTileArgs& args) {
  const auto* const tensor_scales = reinterpret_cast<const float*>(args.stripe);
  const unsigned char* const groups = args.stripe + kStripeWidth * sizeof(float);
  alignas(64) uint32_t pairs[kNvfp4Piece / 2 * kStripeWidth];
  alignas(64) float sums[kMaxTileRows * kStripeWidth];
  const uint16_t* x[kMaxTileRows];
  const int32_t values = args.rows * kStripeWidth;
  for (int32_t first = 0; first < args.k; first += kNvfp4Piece) {
    const int32_t len = std::min(kNvfp4Piece, args.k - first);
    isa.decode_nvfp4(
        {.pairs = pairs, .groups = groups + first / kNvfp4Group * kGroupBytes, .count = len / kNvfp4Group});
    for (int32_t row = 0; row < args.rows; ++row) x[row] = args.x[row] + first;
    isa.gemm_bf16({.tile = first == 0 ? args.tile : sums,
                   .x = x,
                   .stripe = reinterpret_cast<const unsigned char*>(pairs),
                   .scales = nullptr,
                   .table = nullptr,
                   .rows = args.rows,
                   .k = len,
                   .block_k = len});
    for (int32_t i = 0; first > 0 && i < values; ++i) args.tile[i] += sums[i];
  }
  for (int32_t i = 0; i < values; ++i) args.tile[i] *= tensor_scales[i % kStripeWidth];
}

}  // namespace foredraft::cpu
