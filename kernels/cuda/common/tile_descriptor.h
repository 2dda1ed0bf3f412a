#pragma once

// Shared memory descriptors of wgmma operands. Without inline PTX, so that tests/cuda_on_host uses the same
// code.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/ptx.h"

namespace foredraft::cuda {

inline constexpr int kTileRowBytes = 128;

// A K-major SWIZZLE_128B tile of rows of 128 bytes (PTX ISA, matrix descriptor): bits 0-13 the address, 32-45
// the stride of eight rows, both / 16; 16-29 are ignored in this layout; 62-63 the swizzle mode.
__device__ __forceinline__ uint64_t KMajorDescriptor(const void* tile) {
  constexpr uint64_t kEightRows = 8 * kTileRowBytes;
  return static_cast<uint64_t>(SharedAddress(tile) >> 4 & 0x3fffu) | uint64_t{1} << 16 |
         (kEightRows >> 4) << 32 | uint64_t{1} << 62;
}
// Added to a descriptor: 32 bytes further in every row, the next k group.
inline constexpr uint64_t kDescriptor32Bytes = 32 >> 4;

}  // namespace foredraft::cuda
