#pragma once

// The GEMM for Hopper: a persistent, warp-specialised kernel. A thread for each operand keeps TMA loads some
// stages ahead; one or two consumer warpgroups run wgmma. For experts, heads and decode-form GEMMs, which are
// bound by the weights' bytes.
//
// Bits of an output, if k is not split: with BF16 weights, those of kernels/cuda/gemm/gemm_tile.h. With FP8
// weights, the same order, but the tensor core adds a block's k32 groups with 13 fraction bits (measured by
// microsoft/MMA-Sim). So the choice between this kernel and that one depends on the weight's shape alone.

#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/gemm/gemm_tile.h"

namespace foredraft::cuda {

// Whether HopperGemm takes the weight: its rows, or their segments, are multiples of 128 bytes, n of the
// whole weight is a multiple of 8, and the GPU has capability 9.0.
bool HopperSupports(const PackedWeight& weight);

// Like TileGemm; BF16 x must satisfy TmaCanLoad. PlanGemm (gemm_plan.h) chooses the tile; tests pass one. All
// tiles give the same bits. With splits > 1, for a single group, k is cut into that many parts, whose sums
// are added in ascending order: the number of splits decides bits. For a weight with segments, splits share
// the segments, and the result is their sum by the tree, whatever the splits are.
void HopperGemm(Stream& stream, const GemmProblem& problem, GemmTile tile = {});

// The memory for GemmProblem::partials that HopperGemm needs with the same arguments.
int64_t HopperPartialBytes(Stream& stream, const GemmProblem& problem, GemmTile tile = {});

// The problem and the device as gemm_plan.h sees them.
GemmSize SizeOf(const GemmProblem& problem);
GemmRates RatesOf(Stream& stream);

// Whether the rows and groups of x are 16-byte aligned.
bool TmaCanLoad(Matrix<const bf16> x, int64_t x_group_stride);

}  // namespace foredraft::cuda
