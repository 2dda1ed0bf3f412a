#pragma once

// What the GPU does with a weight: a row per layout (weight_kind.cu).

#include <cstdint>
#include <span>

#include "kernels/cuda/gemm/gemm_tile.h"
#include "kernels/cuda/gemm/packed_weight.h"
#include "kernels/random_weight.h"

namespace foredraft::cuda {

struct WeightKind {
  bool (*has)(const WeightFormat& format);
  // Copies parts to the weight's memory (packed_weight.h), or fills `count` adjacent weights with random
  // codes (random_weight.h).
  void (*upload)(CudaStream& stream, const WeightLayout& layout, std::span<const HostWeight> parts,
                 const PackedWeight& weight);
  void (*fill_random)(CudaStream& stream, const RandomWeight& weight, const WeightLayout& layout,
                      const PackedWeight& first, int count);
  // Parts of k in the decode form. The whole weight's shape alone decides, because they decide bits; of a
  // weight with segments they decide none, and the rows count, too.
  int32_t (*splits)(Stream& stream, const GemmProblem& problem);
  int64_t (*partial_bytes)(Stream& stream, const GemmProblem& problem);
  void (*product)(Stream& stream, const GemmProblem& problem);
};

// The kind of a format as packed (WeightLayout::format).
const WeightKind& KindOf(const WeightFormat& format);

}  // namespace foredraft::cuda
