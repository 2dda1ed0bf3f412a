#pragma once

// Keys, values and queries of attention in the layouts that the kernels of kernels/cpu/device/isa.h read. The
// KV axis is cut into tiles of kTileLen positions, counted from position 0 of the sequence.

#include <cstdint>

#include "kernels/cpu/device/isa.h"
#include "kernels/tensor.h"

namespace foredraft::cpu {

// Queries and keys have two parts: latent | rope, or nope | rope. Each is padded to whole pairs.
struct TileShape {
  int32_t a_len;
  int32_t b_len;
  int32_t value_len;

  constexpr int32_t a_pairs() const { return (a_len + 1) / 2; }
  constexpr int32_t pairs() const { return a_pairs() + (b_len + 1) / 2; }
  // Columns of a packed value and of its sums.
  constexpr int32_t width() const { return (value_len + kValueColumns - 1) / kValueColumns * kValueColumns; }
};

// The first position after the tile of `position`.
constexpr int32_t TileEnd(int32_t position) { return (position / kTileLen + 1) * kTileLen; }

// Where the BF16 rows of positions [begin, begin + count) are. Entries past `count` repeat the last row: the
// kernels may read them, but no result depends on them.
struct TileRows {
  int32_t begin;
  int32_t count;  // 1..kTileLen
  const uint16_t* a[kTileLen];
  const uint16_t* b[kTileLen];
  const uint16_t* value[kTileLen];
  const float* scales[kTileLen];  // [count], for FP8 products: a row's scales, by group of columns
};

// Keys and values of a tile, for kernels, in the caller's memory, which every tile reuses.
struct KeyTile {
  Bf16Pair* keys;                        // [pairs][kTileLen]
  Bf16Pair* values;                      // [kTileLen / 2][width]
  const TileRows* rows = nullptr;        // not null: for row_scores and row_sums, and nothing is packed
  const float* const* scales = nullptr;  // not null: FP8 products, TileRows::scales
};

// Prefetches some of `next`.
void PackTile(const IsaKernels& isa, const TileShape& shape, const TileRows& rows, RowPrefetch& next,
              const KeyTile& tile);

// out = pairs of a, then pairs of b.
void PackQuery(const TileShape& shape, const bf16* a, const bf16* b, Bf16Pair* out);

// ---- tiles of the KV cache ----

// Rows of the cache, in the cache's own format.
struct CacheRows {
  int32_t begin;
  int32_t count;               // 0: past the last position
  const void* rows[kTileLen];  // [count]
};

TileShape CacheTileShape(const KvLayer& layer);

// Whether PackCacheRows leaves rows where they are, for row_scores and row_sums.
bool TakesRows(const IsaKernels& isa, const TileShape& shape);

// The rows of positions [begin, last_position] of a slot, at most to the end of the tile.
CacheRows FindCacheRows(const KvLayer& layer, int32_t slot, int32_t begin, int32_t last_position);

// A cursor over all bytes of these rows.
RowPrefetch PrefetchOf(const KvLayer& layer, const CacheRows& rows);

// The one place where attention reads rows of the cache. Everything behind it sees BF16. The tile returned is
// in `memory` and `rows`. Prefetches some of `next`.
KeyTile PackCacheRows(const IsaKernels& isa, const KvLayer& layer, const CacheRows& cached, RowPrefetch& next,
                      const KeyTile& memory, TileRows& rows);

}  // namespace foredraft::cpu
