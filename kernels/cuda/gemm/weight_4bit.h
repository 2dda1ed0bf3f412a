#pragma once

// The GPU's layout of a 4-bit weight [n, k], which gemm_4bit.cu reads: tiles of 64 outputs; a tile is a
// sequence of blocks of 128 inputs, so the bytes of a tile are adjacent and read in order. A block:
//
//   codes   [64 outputs, 4 lanes, 4 quarters] words of 8 codes: 4,096 bytes
//   scales  [128 / group, 64 outputs] bf16; of NVFP4, whose groups have 16 inputs, E4M3
//
// A tile of NVFP4 begins with the 64 tensor scales of its outputs in FP32, so that parts with different ones
// can be stacked at any row.
//
// Quarter j of lane t has the block's inputs 32 j + 8 q + 2 t + p, q = 0..3 and p = 0..1: what lane t of a
// quad multiplies in two mma.m16n8k16. Nibble q of the word's half p is the code, so a shift by 4 q leaves
// the codes of two adjacent inputs in the low nibbles of the halves. Outputs past n and inputs past k have
// scale 0.

#include <cstdint>

#include "kernels/weight_format.h"

namespace foredraft {

inline constexpr int32_t kTile4Outputs = 64;
inline constexpr int32_t kBlock4Inputs = 128;
inline constexpr int32_t kBlock4Quarters = kBlock4Inputs / 32;
inline constexpr int32_t kBlock4CodeBytes = kTile4Outputs * kBlock4Inputs / 2;

// Formats whose scales the kernel supports: NVFP4, or a BF16 scale per group of a row, where a group is whole
// quarters and a block is whole groups.
constexpr bool Is4BitLayout(const WeightFormat& format) {
  if (format.tensor_scale) return format == kNvfp4Format;
  return Is4Bit(format) && format.rows == 1 && format.scale == DType::kBF16 && !format.tensor_scale &&
         (format.columns == 32 || format.columns == 64 || format.columns == 128);
}

struct Layout4Bit {
  int32_t n = 0;
  int32_t k = 0;
  int32_t group = 32;

  constexpr bool nvfp4() const { return group == kNvfp4Format.columns; }
  constexpr int32_t scale_bytes() const { return nvfp4() ? 1 : 2; }
  // Bytes of the tensor scales before the blocks of a tile.
  constexpr int32_t tensor_scale_bytes() const { return nvfp4() ? kTile4Outputs * int32_t{4} : 0; }
  constexpr int32_t tiles() const { return (n + kTile4Outputs - 1) / kTile4Outputs; }
  constexpr int32_t blocks() const { return (k + kBlock4Inputs - 1) / kBlock4Inputs; }  // of a tile
  constexpr int32_t groups_of_block() const { return kBlock4Inputs / group; }
  constexpr int32_t block_bytes() const {
    return kBlock4CodeBytes + groups_of_block() * kTile4Outputs * scale_bytes();
  }
  constexpr int64_t tile_bytes() const { return tensor_scale_bytes() + int64_t{blocks()} * block_bytes(); }
  constexpr int64_t bytes() const { return tiles() * tile_bytes(); }
};

inline constexpr int32_t kMaxBlock4Bytes = Layout4Bit{.group = 32}.block_bytes();
static_assert(Layout4Bit{.group = kNvfp4Format.columns}.block_bytes() <= kMaxBlock4Bytes);

// Bytes from the start of a block. `output` of the tile, `group` of the block.
constexpr int32_t Word4At(int32_t output, int32_t lane, int32_t quarter) {
  return (output * 4 + lane) * 16 + quarter * 4;
}
constexpr int32_t Scale4At(int32_t output, int32_t group, int32_t scale_bytes = 2) {
  return kBlock4CodeBytes + (group * kTile4Outputs + output) * scale_bytes;
}

// The input of the block that nibble q of half p is for.
constexpr int32_t Input4Of(int32_t lane, int32_t quarter, int32_t q, int32_t p) {
  return 32 * quarter + 8 * q + 2 * lane + p;
}

}  // namespace foredraft
