#include "kernels/cpu/attention/attend.h"

#include <algorithm>

#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/exp.h"

namespace foredraft::cpu {
namespace {

// out = x * keep + y * take
FOREDRAFT_WIDE void AddScaled(const float* y, float take, float keep, int32_t count, float* x) {
  for (int32_t i = 0; i < count; ++i) x[i] = x[i] * keep + y[i] * take;
}

struct alignas(64) CacheLine {
  float floats[16];
};

size_t LinesOf(size_t floats) { return (floats + 15) / 16; }

}  // namespace

void AttendTile(const IsaKernels& isa, const QueryBlock& block, const KeyTile& tile, int32_t begin,
                int32_t count, bool first, RowPrefetch& next, const BlockSums& sums) {
  alignas(64) float scores[kMaxTileQueries * kTileLen];
  alignas(64) Bf16Pair weights[kMaxTileQueries * kTileLen / 2];
  float keep[kMaxTileQueries];
  int32_t counts[kMaxTileQueries];
  const int32_t pairs = block.shape.pairs();
  const int32_t width = block.shape.width();
  for (int32_t q = block.FirstAttending(begin); q < block.count; q += kMaxTileQueries) {
    const int32_t queries = std::min(kMaxTileQueries, block.count - q);
    for (int32_t i = 0; i < queries; ++i)
      counts[i] = std::min(count, block.last_positions[q + i] + 1 - begin);
    const Bf16Pair* const packed = block.queries + static_cast<int64_t>(q) * pairs;
    if (tile.rows != nullptr) {
      isa.row_scores({scores, packed, tile.rows->a, tile.rows->b, counts, block.shape.a_len,
                      block.shape.b_len, queries, &next});
    } else {
      isa.tile_scores({scores, packed, tile.keys, counts, pairs, queries, &next});
    }
    isa.tile_softmax(
        {weights, keep, sums.max + q, sums.sum + q, scores, counts, block.scale, queries, first});
    float* const acc = sums.acc + static_cast<int64_t>(q) * width;
    if (first) std::fill_n(acc, static_cast<int64_t>(queries) * width, 0.0f);
    if (tile.rows != nullptr) {
      isa.row_sums(
          {acc, keep, weights, tile.rows->value, counts, block.shape.value_len, width, queries, &next});
    } else {
      isa.tile_sum({acc, keep, weights, tile.values, counts, width, queries, &next});
    }
  }
}

void AddSums(const TileShape& shape, int32_t query, const BlockSums& later, const BlockSums& sums) {
  const float max = std::max(sums.max[query], later.max[query]);
  const float keep = Exp(sums.max[query] - max);
  const float take = Exp(later.max[query] - max);
  const int64_t at = static_cast<int64_t>(query) * shape.width();
  AddScaled(later.acc + at, take, keep, shape.width(), sums.acc + at);
  sums.sum[query] = sums.sum[query] * keep + later.sum[query] * take;
  sums.max[query] = max;
}

void FinishQuery(const TileShape& shape, int32_t query, const BlockSums& sums, bf16* out) {
  ScaleToBf16(sums.acc + static_cast<int64_t>(query) * shape.width(), 1.0f / sums.sum[query], shape.value_len,
              out);
}

AttendScratch::AttendScratch(const TileShape& shape, int32_t queries) {
  const size_t sums_lines = LinesOf(BlockSums::Floats(shape, queries));
  const size_t query_lines = LinesOf(static_cast<size_t>(queries) * shape.pairs());
  const size_t key_lines = LinesOf(static_cast<size_t>(shape.pairs()) * kTileLen);
  const size_t value_lines = LinesOf(static_cast<size_t>(shape.width()) * kTileLen / 2);
  CacheLine* line = ThreadScratch<CacheLine>(2 * sums_lines + query_lines + key_lines + value_lines);
  sums_ = BlockSums::At(line->floats, shape, queries);
  line += sums_lines;
  later_ = BlockSums::At(line->floats, shape, queries);
  line += sums_lines;
  queries_ = reinterpret_cast<Bf16Pair*>(line);
  line += query_lines;
  packed_.keys = reinterpret_cast<Bf16Pair*>(line);
  packed_.values = reinterpret_cast<Bf16Pair*>(line + key_lines);
}

}  // namespace foredraft::cpu
