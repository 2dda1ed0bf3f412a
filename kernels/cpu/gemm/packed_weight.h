#pragma once

// The CPU's layout of a weight [n, k]: stripes of 32 outputs, streamed once per GEMM.
//
// A stripe is a sequence of k blocks, a k block a sequence of pairs of k, and a pair has 32 outputs x 2
// adjacent k: 128 bytes of BF16 (two VDPBF16PS operands) or 64 of FP8. So a thread reads its share of a
// weight sequentially, which suits the hardware prefetchers: with 4 streams of 32 KB each, the same machine
// reads 25% slower. A k block of odd length ends in a pair whose second half is zero; outputs past n are
// zero. BF16 has one k block, all of k. FP8 has the k blocks of its scale grid, with the scales expanded to
// one per output, [stripes, k_blocks, 32], so that parts with different grids can be stacked at any row.
//
// A k block of a 4-bit kind is a group: its octets of k, then its 32 scales in BF16, so that scales are part
// of the same sequential stream. An octet is a 32-bit word per output, 128 bytes: nibble q of the word's half
// p has the code of k = 2q + p. A shift by 4q thus leaves a pair of adjacent k in the low nibbles of the
// halves.

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/device/thread_pool.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

// At PackedWeight.data; the stripes begin at the next cache line.
struct alignas(64) PackedHeader {
  int64_t stripe_bytes;
  int32_t stripe_count;
  int32_t block_k;   // bf16: k; 4 bits: the group
  int32_t k_blocks;  // bf16: 1
};

inline const PackedHeader& HeaderOf(const PackedWeight& weight) {
  return *static_cast<const PackedHeader*>(weight.data);
}

inline const unsigned char* StripesOf(const PackedWeight& weight) {
  return static_cast<const unsigned char*>(weight.data) + sizeof(PackedHeader);
}

// Bytes of the parts packed, scales included. Reads their shapes alone.
int64_t PackedBytes(std::span<const HostWeight> parts);

// INVALID_ARGUMENT names the mismatch.
absl::StatusOr<PackedWeight> PackParts(std::span<const HostWeight> parts, ThreadPool& pool,
                                       const std::function<absl::StatusOr<void*>(size_t)>& allocate);

}  // namespace foredraft
