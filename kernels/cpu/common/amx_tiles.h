#pragma once

// Tile registers of AMX, for the files that are compiled for it. All names are internal to the including file
// (kernels/cpu/device/isa.h says why).

#include <immintrin.h>

#include <cstdint>

namespace foredraft {
namespace {

constexpr int kTileRows = 16;     // of a tile register
constexpr int kLanes = 16;        // columns of a result
constexpr int kPairsOfTile = 16;  // pairs that one instruction multiplies
constexpr int kFloatBytes = 4;

// GCC's intrinsics do not say which memory they read.
inline void MemoryIsReadBelow() { asm volatile("" ::: "memory"); }

// Shapes of the tile registers, as LDTILECFG reads them.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // A register of `count` rows of results.
  void SetResult(int tile, int count) {
    row_bytes[tile] = kLanes * kFloatBytes;
    rows[tile] = static_cast<uint8_t>(count);
  }
  // A register of `count` rows of the left operand, `pairs` in each.
  void SetLeft(int tile, int count, int pairs) {
    row_bytes[tile] = static_cast<uint16_t>(pairs * kFloatBytes);
    rows[tile] = static_cast<uint8_t>(count);
  }
  // A register of the right operand: a row for each pair.
  void SetRight(int tile, int pairs) { SetResult(tile, pairs); }

  // Zeroes all tile registers.
  void Load() const {
    MemoryIsReadBelow();
    _tile_loadconfig(this);
  }
};

}  // namespace
}  // namespace foredraft
