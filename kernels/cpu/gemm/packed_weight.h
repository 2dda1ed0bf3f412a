#pragma once

// The CPU's layout of a weight [n, k]: panels of 32 outputs, streamed once per GEMM.
//
// A panel is a sequence of k blocks, a k block a sequence of pairs of k, and a pair has 32 outputs x 2
// adjacent k: 128 bytes of BF16 (two VDPBF16PS operands) or 64 of an 8-bit kind. So a thread reads its share
// of a weight sequentially, which suits the hardware prefetchers: with 4 streams of 32 KB each, the same
// machine reads 25% slower. A k block of odd length ends in a pair whose second half is zero; outputs past n
// are zero. BF16 has one k block, all of k. An 8-bit kind has the k blocks of its scale grid, with the scales
// expanded to one per output, [panels, k_blocks, 32], so that parts with different grids can be stacked at
// any row.
//
// A k block of a 4-bit kind is a group: its octets of k, then its 32 scales in BF16, so that scales are part
// of the same sequential stream. An octet is a 32-bit word per output, 128 bytes: nibble q of the word's half
// p has the code of k = 2q + p. A shift by 4q thus leaves a pair of adjacent k in the low nibbles of the
// halves.
//
// Where the pool has threads on several NUMA nodes, each node's memory has the panels that its threads read
// (ThreadPool::FirstPanel). So every weight, and every expert, is cut over all nodes: one token reads from
// the memory of all of them.

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/device/thread_pool.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

// Panels that lie one after another.
struct PanelPart {
  const unsigned char* panels;
  const float* scales;  // 8 bits; else null
  int64_t first;
};

// PackedWeight.data points here; parts follow, and a single part's panels begin at the next cache line.
struct PackedHeader {
  int64_t panel_bytes;
  int32_t panel_count;
  int32_t block_k;   // bf16: k; 4 bits: the group
  int32_t k_blocks;  // bf16: 1
  int32_t part_count;

  std::span<const PanelPart> parts() const {
    return {reinterpret_cast<const PanelPart*>(this + 1), static_cast<size_t>(part_count)};
  }
  const PanelPart& part_of(int64_t panel) const {
    const PanelPart* part = parts().data() + part_count - 1;
    while (part->first > panel) --part;
    return *part;
  }
};

inline const PackedHeader& HeaderOf(const PackedWeight& weight) {
  return *static_cast<const PackedHeader*>(weight.data);
}

struct Panel {
  const unsigned char* data;
  const float* scales;  // 8 bits: [k_blocks, 32]; else null
};

inline Panel PanelOf(const PackedWeight& weight, int64_t panel) {
  const PackedHeader& header = HeaderOf(weight);
  const PanelPart& part = header.part_of(panel);
  const int64_t index = panel - part.first;
  return {part.panels + index * header.panel_bytes,
          part.scales != nullptr ? part.scales + index * header.k_blocks * kPanelWidth : nullptr};
}

// Allocates on a node of the pool (ThreadPool::node_count), or on none.
using AllocateOnNode = std::function<absl::StatusOr<void*>(size_t bytes, int node)>;
inline constexpr int kNoNode = -1;

// Bytes of the parts packed on one node, scales included. Reads their shapes alone.
int64_t PackedBytes(std::span<const HostWeight> parts);

// INVALID_ARGUMENT names the mismatch.
absl::StatusOr<PackedWeight> PackParts(std::span<const HostWeight> parts, ThreadPool& pool,
                                       const AllocateOnNode& allocate);

}  // namespace foredraft
