#ifndef FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_H_
#define FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_H_

// The GEMM for Hopper: a persistent, warp-specialised kernel. A producer thread keeps TMA loads some stages
// ahead; one or two consumer warpgroups run wgmma. For experts, heads and decode-form GEMMs, which are bound
// by the weights' bytes.
//
// Bits of an output: with BF16 weights, those of kernels/cuda/gemm_tile.h. With FP8 weights, the same order,
// but the tensor core adds a block's k32 groups with 13 fraction bits (measured by microsoft/MMA-Sim). So the
// choice between this kernel and that one depends on the weight's shape alone.

#include "kernels/cuda/gemm_tile.h"

namespace foredraft::cuda {

// Rows of a multiple of 128 bytes, n a multiple of 8; on a GPU of capability 9.0.
bool HopperSupports(const PackedWeight& weight);

// As TileGemm; BF16 x must satisfy TmaCanLoad. Up to 64 rows (per group, on average), a tile has 64 rows and
// 16, 32, 64 or 128 outputs: the most with which a weight of few outputs (the router, q_a with kv_a, o) still
// has tiles for half the multiprocessors. All tile sizes give the same bits; 0 chooses, tests force one.
void HopperGemm(Stream& stream, const GemmProblem& problem, int rows_per_tile = 0, int outputs_per_tile = 0);

// Whether the rows and groups of x are 16-byte aligned.
bool TmaCanLoad(Matrix<const bf16> x, int64_t x_group_stride);

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_GEMM_HOPPER_H_
