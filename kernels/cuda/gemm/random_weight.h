#pragma once

#include "kernels/cuda/gemm/packed_weight.h"
#include "kernels/random_weight.h"

namespace foredraft {

// Fill `count` adjacent weights of one layout, starting with `first`: FillRandom4Bit those of 4-bit kinds,
// FillRandomElements all others.
void FillRandomElements(CudaStream& stream, const RandomWeight& weight, const WeightLayout& layout,
                        const PackedWeight& first, int count);
void FillRandom4Bit(CudaStream& stream, const RandomWeight& weight, const WeightLayout& layout,
                    const PackedWeight& first, int count);

}  // namespace foredraft
