#ifndef FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_H_
#define FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_H_

// The GEMM for Hopper: one block per multiprocessor walks the tiles; a producer thread keeps the copy engine
// (TMA) some stages ahead, one or two warp groups multiply (wgmma). For experts, heads and decode-form GEMMs,
// which are bound by the weights' bytes.
//
// Bits of an output: BF16 weights as kernels/cuda/gemm_tile.h. FP8 weights likewise, but the tensor core adds
// a block's k32 groups with 13 fraction bits (found by microsoft/MMA-Sim); so a weight is taken by this
// kernel or by that one, which its shape alone decides.

#include "kernels/cuda/gemm_tile.h"

namespace foredraft::cuda {

// Whole rows of 128 bytes, outputs in eights.
bool HopperTakes(const PackedWeight& weight);

// As TileGemm; BF16 x must be fit for the copy engine (HopperReads). Up to 64 rows (of a group, in the mean)
// a tile has 64 rows and 16, 32, 64 or 128 outputs: as many as leave a weight of few outputs (the router, q_a
// with kv_a, o) tiles for half the multiprocessors. All tiles give the same bits; tests name one.
void HopperGemm(Stream& stream, const GemmProblem& problem, int rows_per_tile = 0, int outputs_per_tile = 0);

// x is 16-byte aligned, in its rows and its groups.
bool HopperReads(Matrix<const bf16> x, int64_t x_group_stride);

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_H_
