#pragma once

// The grouped GEMM of gate and up, fused with silu_mul, rounding to BF16 and quantisation. A block has
// 128 outputs of gate and the same 128 of up, so it owns a whole scale group of the result, and the sums
// never leave the multiprocessor. Same bits as HopperGemm, silu_mul and QuantizeRows in sequence.

#include "kernels/cuda/gemm/gemm_tile.h"

namespace foredraft::cuda {

// FP8 weights with rows of a multiple of 128 bytes, gate and up of a multiple of 128 outputs each.
bool GateUpSupports(const PackedWeight& weight);

// The problem's outputs are ignored. out: [R, n / 2]. limit: silu_mul's. tile_rows: rows of a tile, up to 64;
// 0 chooses (the bits are the same), tests force one.
void GateUpGemm(Stream& stream, const GemmProblem& problem, const QuantizedRows& out, float limit,
                int32_t tile_rows = 0);

}  // namespace foredraft::cuda
