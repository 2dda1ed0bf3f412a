#ifndef FOREDRAFT_KERNELS_CUDA_GEMM_GATE_UP_H_
#define FOREDRAFT_KERNELS_CUDA_GEMM_GATE_UP_H_

// The grouped GEMM of gate and up with what follows it: silu(gate) * up, rounded to BF16, quantised. A block
// has 128 outputs of gate and the same of up, so that a group of 128 of the result is its own: the sums never
// leave the multiprocessor. The bits are those of HopperGemm, silu_mul and QuantizeRows one after another.

#include "kernels/cuda/gemm_tile.h"

namespace foredraft::cuda {

// FP8, rows of whole 128 bytes, gate and up whole blocks of 128 outputs.
bool GateUpTakes(const PackedWeight& weight);

// problem: its outputs are not read. out: [R, n / 2].
void GateUpGemm(Stream& stream, const GemmProblem& problem, const QuantizedRows& out);

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_GEMM_GATE_UP_H_
