#pragma once

#include "kernels/cuda/gemm/packed_weight.h"
#include "kernels/random_weight.h"

namespace foredraft {

// Fill `count` adjacent weights of one layout, starting with `first`: of a 4-bit kind, or of another one.
void FillRandomElements(CudaStream& stream, const RandomWeight& weight, const WeightLayout& layout,
                        const PackedWeight& first, int count);
void FillRandom4Bit(CudaStream& stream, const RandomWeight& weight, const WeightLayout& layout,
                    const PackedWeight& first, int count);

}  // namespace foredraft
