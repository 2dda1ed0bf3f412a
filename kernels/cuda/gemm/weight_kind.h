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
  // The number of splits of k in the decode form. It follows from the whole weight's shape alone, because it
  // decides bits. For a weight with segments it decides none, and depends on the rows, too.
  int32_t (*splits)(Stream& stream, const GemmProblem& problem);
  int64_t (*partial_bytes)(Stream& stream, const GemmProblem& problem);
  void (*product)(Stream& stream, const GemmProblem& problem);
};

// The kind of a format as packed (WeightLayout::format).
const WeightKind& KindOf(const WeightFormat& format);

}  // namespace foredraft::cuda
