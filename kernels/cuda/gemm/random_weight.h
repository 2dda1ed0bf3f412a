#pragma once

#include "kernels/cuda/gemm/packed_weight.h"
#include "kernels/random_weight.h"

namespace foredraft {

// Fills `count` adjacent weights of one layout, starting with `first`, with random elements.
void FillRandomWeights(CudaStream& stream, const RandomWeight& weight, const WeightLayout& layout,
                       const PackedWeight& first, int count);

}  // namespace foredraft
