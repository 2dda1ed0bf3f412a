#ifndef FOREDRAFT_KERNELS_CPU_PACKED_WEIGHT_H_
#define FOREDRAFT_KERNELS_CPU_PACKED_WEIGHT_H_

// The CPU's layout of a weight [n, k]: stripes of 32 outputs, streamed once per GEMM.
//
// A stripe holds, k block after k block and within one pair of k after pair, 32 outputs x 2 adjacent k: 128
// bytes of BF16 (two VDPBF16PS operands) or 64 of FP8. So a thread reads its share of a weight from front to
// back, which is what the prefetchers want: with 4 streams of 32 KB each instead, the same machine reads a
// quarter slower. A k block with an odd length ends in a pair whose second half is zero; outputs past n are
// zero. BF16 has one k block, all of k; FP8 has those of its scale grid, and the scales are spread out to one
// per output, [stripes, k_blocks, 32], so that parts with grids of their own can be stacked at any row.

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

// Stands at PackedWeight.data; the stripes follow at the next cache line.
struct alignas(64) PackedHeader {
  int64_t stripe_bytes;
  int32_t stripe_count;
  int32_t block_k;   // bf16: k
  int32_t k_blocks;  // bf16: 1
};

inline const PackedHeader& HeaderOf(const PackedWeight& weight) {
  return *static_cast<const PackedHeader*>(weight.data);
}

inline const unsigned char* StripesOf(const PackedWeight& weight) {
  return static_cast<const unsigned char*>(weight.data) + sizeof(PackedHeader);
}

// INVALID_ARGUMENT names what does not fit together.
absl::StatusOr<PackedWeight> PackParts(std::span<const HostWeight> parts, ThreadPool& pool,
                                       const std::function<absl::StatusOr<void*>(size_t)>& allocate);

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CPU_PACKED_WEIGHT_H_
