#include "kernels/cpu/attention/key_tile.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/attention/kv_row_math.h"
#include "kernels/cpu/common/scratch.h"

namespace foredraft::cpu {
namespace {

void PackPart(const bf16* x, int32_t len, Bf16Pair* out) {
  std::memcpy(out, x, static_cast<size_t>(len / 2) * sizeof(Bf16Pair));
  if (len % 2 != 0) out[len / 2] = x[len - 1].bits;
}
static_assert(std::endian::native == std::endian::little, "adjacent elements are a pair as they are");

// row_scores takes keys of this many pairs and more; shorter ones are packed. It adds up 16 lanes for every
// score, which costs a query as much as packing 4 pairs of the tile's keys.
constexpr int32_t kRowScoresPairs = 128;

}  // namespace

void PackTile(const IsaKernels& isa, const TileShape& shape, const TileRows& rows, RowPrefetch& next,
              const KeyTile& tile) {
  isa.pack_keys({tile.keys, rows.a, rows.count, shape.a_len, &next});
  isa.pack_keys({tile.keys + shape.a_pairs() * kTileLen, rows.b, rows.count, shape.b_len, &next});
  isa.pack_values({tile.values, rows.value, rows.count, shape.value_len, shape.width(), &next});
}

void PackQuery(const TileShape& shape, const bf16* a, const bf16* b, Bf16Pair* out) {
  PackPart(a, shape.a_len, out);
  PackPart(b, shape.b_len, out + shape.a_pairs());
}

TileShape CacheTileShape(const KvLayer& layer) {
  return {layer.latent_dim, layer.rope_dim, layer.latent_dim};
}

bool TakesRows(const IsaKernels& isa, const TileShape& shape) {
  return isa.row_scores != nullptr && shape.pairs() >= kRowScoresPairs;
}

CacheRows FindCacheRows(const KvLayer& layer, int32_t slot, int32_t begin, int32_t last_position) {
  CacheRows rows;
  rows.begin = begin;
  rows.count = std::max(0, std::min(last_position + 1, TileEnd(begin)) - begin);
  for (int32_t t = 0; t < rows.count;) {
    // Rows of a block are adjacent: the block table is read once per block.
    const int32_t position = begin + t;
    const uint8_t* row = layer.row(slot, position);
    const int32_t of_block = layer.tokens_per_block - position % layer.tokens_per_block;
    const int32_t end = std::min(rows.count, t + of_block);
    for (; t < end; ++t, row += layer.row_bytes()) rows.rows[t] = row;
  }
  return rows;
}

RowPrefetch PrefetchOf(const KvLayer& layer, const CacheRows& rows) {
  return {rows.rows, rows.count, layer.row_bytes()};
}

KeyTile PackCacheRows(const IsaKernels& isa, const KvLayer& layer, const CacheRows& cached, RowPrefetch& next,
                      const KeyTile& memory, TileRows& rows) {
  rows.begin = cached.begin;
  rows.count = cached.count;
  const KvRowLayout layout = layer.layout();
  bf16* decoded = layout.coded() ? ThreadScratch<bf16>(size_t{kTileLen} * layout.latent_dim) : nullptr;
  for (int32_t t = 0; t < cached.count; ++t) {
    const auto* row = static_cast<const uint8_t*>(cached.rows[t]);
    rows.a[t] = &LatentOf(isa, row, layout, decoded)->bits;
    rows.b[t] = &RopeOf(row, layout)->bits;
    rows.scales[t] = reinterpret_cast<const float*>(row + layout.scale_offset());
    if (layout.coded()) decoded += layout.latent_dim;
  }
  std::fill(rows.a + cached.count, rows.a + kTileLen, rows.a[cached.count - 1]);
  std::fill(rows.b + cached.count, rows.b + kTileLen, rows.b[cached.count - 1]);
  std::copy(rows.a, rows.a + kTileLen, rows.value);
  const TileShape shape = CacheTileShape(layer);
  const float* const* const scales = layer.fp8_products ? rows.scales : nullptr;
  if (TakesRows(isa, shape)) return {nullptr, nullptr, &rows, scales};
  PackTile(isa, shape, rows, next, memory);
  return {memory.keys, memory.values, nullptr, scales};
}

}  // namespace foredraft::cpu
