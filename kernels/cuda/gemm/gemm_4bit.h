#pragma once

// The GEMM for 4-bit weights of any shape, on any GPU: mma.sync tiles, operands loaded by cp.async, codes
// widened to BF16 in registers (exactly, see ValuesOf in gemm_4bit_tile.h). Weights have the layout of
// weight_4bit.h.
//
// Bits of an output, if k is not split: for each group of inputs that share a scale a sum from zero over its
// k16 groups, ascending, as in gemm_tile.h; then out = fma(scale, sum, out), groups ascending. NVFP4: one sum
// over all k16 groups of codes times scales, which BF16 holds exactly, then times the tensor scale. Bits do
// not depend on tile sizes, row indices or row counts. With splits of k, the sums of the splits are added in
// ascending order: the number of splits decides bits, and Splits4Bit (gemm_plan.h) takes it from the weight's
// shape. A weight with segments has whole blocks in each: the above holds for each segment, and splits share
// the segments.

#include <cstdint>

#include "kernels/cuda/gemm/gemm_tile.h"

namespace foredraft::cuda {

// Plan4Bit (gemm_plan.h) chooses the tile; tests pass one, of 16, 32 or 64 rows. The bits are the same.
// Splits are for a single group.
void Gemm4Bit(Stream& stream, const GemmProblem& problem, int32_t tile_rows = 0);

// The memory for GemmProblem::partials that Gemm4Bit needs with the same arguments.
int64_t PartialBytes4Bit(Stream& stream, const GemmProblem& problem, int32_t tile_rows = 0);

}  // namespace foredraft::cuda
