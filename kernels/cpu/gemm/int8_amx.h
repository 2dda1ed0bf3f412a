#pragma once

// The tile kernel of rows rounded to 8 bits with AMX, for more rows than int8_tile.h has in one block. An
// instruction multiplies 16 rows x 16 outputs x up to 64 k. Codes of the weight are widened to signed bytes
// in the first-level cache, once for all rows. A group's sums are the integers of int8_tile.h, scaled by the
// same operations, so the bits are the same.
//
// All names are internal to the including file (kernels/cpu/device/isa.h says why).

#include <cstdint>

#include "kernels/cpu/common/amx_tiles.h"
#include "kernels/cpu/gemm/int8_lanes_512.h"
#include "kernels/cpu/gemm/int8_tile.h"

namespace foredraft {
namespace {

constexpr int32_t kMostStepK = 64;  // of one instruction
constexpr int kRowBytes = 64;       // of a tile register

// The shape that this thread's tile registers are configured for; 0 rows for none.
struct Int8TileShape {
  int32_t rows = 0;
  int32_t step_k = 0;

  bool operator==(const Int8TileShape&) const = default;
};
thread_local Int8TileShape configured_int8;

// Tile registers as in gemm_amx.cc: 0 to 3 the sums of 16 rows x 16 outputs, 4 and 5 rows, 6 and 7 outputs.
void ConfigureInt8(const Int8TileShape& shape) {
  if (shape == configured_int8) return;
  configured_int8 = shape;
  const int pairs = shape.step_k / 4;  // four bytes take the place of a pair of BF16
  const int first = shape.rows < kTileRows ? shape.rows : kTileRows;
  const int others = shape.rows > kTileRows ? shape.rows - kTileRows : 1;
  TileConfig config;
  for (int tile = 0; tile < 4; ++tile) config.SetResult(tile, tile < 2 ? first : others);
  config.SetLeft(4, first, pairs);
  config.SetLeft(5, others, pairs);
  config.SetRight(6, pairs);
  config.SetRight(7, pairs);
  config.Load();
}

void ReleaseInt8() {
  if (configured_int8.rows == 0) return;
  configured_int8 = {};
  _tile_release();
}

// What AMX multiplies in one step: `step_k` inputs of a group.
struct Int8Step {
  alignas(64) unsigned char rows[kMaxTileRows][kRowBytes];
  // Two blocks of 16 outputs: four bytes of an output beside each other, a row for every four inputs.
  alignas(64) unsigned char outputs[2][kMostStepK / 4][kRowBytes];
};

template <class Weight>
__m512i SignedBytes(__m512i nibbles) {
  const __m512i bytes = Weight::kLooksUp ? LanesAvx512::LookUp(nibbles) : nibbles;
  return _mm512_sub_epi8(bytes, _mm512_set1_epi8(Weight::kLooksUp ? kF4E2M1Bias : kInt4Bias));
}

// w: the step's first octet.
template <class Weight>
void WidenOutputs(const unsigned char* w, int32_t octets, Int8Step& step) {
  for (int32_t octet = 0; octet < octets; ++octet, w += kOctetBytes) {
    FOREDRAFT_UNROLL
    for (int half = 0; half < 2; ++half) {
      LanesAvx512::Fetch(w + kRowBytes * half + kInt8FetchDistance);
      const __m512i words = LanesAvx512::Load(w + kRowBytes * half);
      _mm512_store_si512(step.outputs[half][2 * octet], SignedBytes<Weight>(LanesAvx512::LowNibbles(words)));
      _mm512_store_si512(step.outputs[half][2 * octet + 1],
                         SignedBytes<Weight>(LanesAvx512::HighNibbles(words)));
    }
  }
}

// Adds a step's products to tile registers 0 and 1, to 2 and 3 if `many`.
void AddInt8Step(const Int8Step& step, bool many) {
  MemoryIsReadBelow();
  _tile_loadd(4, step.rows[0], kRowBytes);
  _tile_loadd(6, step.outputs[0], kRowBytes);
  _tile_loadd(7, step.outputs[1], kRowBytes);
  _tile_dpbssd(0, 4, 6);
  _tile_dpbssd(1, 4, 7);
  if (!many) return;
  _tile_loadd(5, step.rows[kTileRows], kRowBytes);
  _tile_dpbssd(2, 5, 6);
  _tile_dpbssd(3, 5, 7);
}

struct Int8Sums {
  alignas(64) int32_t sums[kMaxTileRows][kPanelWidth];
};

void StoreInt8Sums(Int8Sums& out, bool many) {
  constexpr int kStride = kPanelWidth * static_cast<int>(sizeof(int32_t));
  _tile_stored(0, out.sums[0], kStride);
  _tile_stored(1, out.sums[0] + kLanes, kStride);
  if (many) {
    _tile_stored(2, out.sums[kTileRows], kStride);
    _tile_stored(3, out.sums[kTileRows] + kLanes, kStride);
  }
  MemoryIsReadBelow();
}

// Whether steps of one length make up a group.
bool HasInt8Steps(int32_t group) { return group <= kMostStepK || group % kMostStepK == 0; }

template <class Weight>
void MultiplyInt8Amx(const GemmTileArgs& args) {
  const int32_t group = args.block_k, step_k = group < kMostStepK ? group : kMostStepK;
  const int64_t codes_bytes = group / kOctet * kOctetBytes;
  const bool many = args.rows > kTileRows;
  ConfigureInt8({args.rows, step_k});
  for (int32_t i = 0; i < args.rows * kPanelWidth; ++i) args.tile[i] = 0.0f;
  const unsigned char* w = args.panel;
  for (int32_t g = 0; g < args.k / group; ++g, w += codes_bytes + Weight::kScaleBytes * kPanelWidth) {
    const unsigned char* x[kMaxTileRows];
    for (int32_t row = 0; row < args.rows; ++row) {
      x[row] = reinterpret_cast<const unsigned char*>(args.x[row]) + g * Int8GroupBytes(group);
    }
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int32_t first = 0; first < group; first += step_k) {
      Int8Step step;
      for (int32_t row = 0; row < args.rows; ++row) __builtin_memcpy(step.rows[row], x[row] + first, step_k);
      WidenOutputs<Weight>(w + first / kOctet * kOctetBytes, step_k / kOctet, step);
      AddInt8Step(step, many);
    }
    Int8Sums out;
    StoreInt8Sums(out, many);
    const unsigned char* const scales = w + codes_bytes;
    FOREDRAFT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m512 scale = WeightScales<LanesAvx512, Weight>(scales + Weight::kScaleBytes * kLanes * half);
      for (int32_t row = 0; row < args.rows; ++row) {
        const auto* const sums = reinterpret_cast<const unsigned char*>(out.sums[row] + kLanes * half);
        AddScaledSums<LanesAvx512>(LanesAvx512::Load(sums), x[row] + group, scale,
                                   args.tile + row * kPanelWidth + kLanes * half);
      }
    }
  }
}

void MultiplyInt8Amx(const GemmTileArgs& args, Int8Codes codes) {
  if (args.rows <= LanesAvx512::kRows || !HasInt8Steps(args.block_k)) {
    return MultiplyInt8<LanesAvx512>(args, codes);
  }
  switch (codes) {
    case Int8Codes::kInt4:
      return MultiplyInt8Amx<Int4Weight>(args);
    case Int8Codes::kF4E2M1:
      return MultiplyInt8Amx<F4E2M1Weight>(args);
    case Int8Codes::kNvfp4:
      break;
  }
  MultiplyInt8Amx<Nvfp4Weight>(args);
  MultiplyByTensorScales(args);
}

}  // namespace
}  // namespace foredraft
