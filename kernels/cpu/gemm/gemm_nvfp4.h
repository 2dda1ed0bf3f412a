#pragma once

// The tile of an NVFP4 weight where the instruction set has none of its own (IsaKernels::gemm_nvfp4): pieces
// of k are decoded to BF16 in the first-level cache and multiplied by the BF16 tile kernel. A code times its
// group's scale is exactly a BF16 value, so groups leave no trace in the sums. Bits of an output: the BF16
// kernel's sums of pieces of kNvfp4Piece inputs, added in order, then multiplied by the tensor scale. A row's
// bits do not depend on the rows beside it, because the BF16 kernel's do not.
//
// A stripe (kernels/cpu/gemm/packed_weight.h) begins with the tensor scales of its 32 outputs in FP32, so
// that parts with different ones can be stacked at any row. A group has the codes of 4-bit kinds and its 32
// scales in E4M3.

#include <cstdint>

#include "kernels/cpu/device/isa.h"

namespace foredraft::cpu {

inline constexpr int32_t kNvfp4Group = 16;
inline constexpr int32_t kNvfp4Piece = 256;  // 16 KB decoded

// `args`: as of the other tile kernels.
void ComputeNvfp4Tile(const IsaKernels& isa, const GemmTileArgs& args);

}  // namespace foredraft::cpu
