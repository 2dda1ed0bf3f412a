#include "kernels/cpu/attention/attend.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/exp.h"
#include "kernels/kv_row.h"

namespace foredraft::cpu {
namespace {

// out = x * keep + y * take
FOREDRAFT_WIDE void AddScaled(const float* y, float take, float keep, int32_t count, float* x) {
  for (int32_t i = 0; i < count; ++i) x[i] = x[i] * keep + y[i] * take;
}

struct alignas(64) TileWeights {
  Bf16Pair pairs[kMaxTileQueries * kTileLen / 2];

  Bf16Pair* of(int32_t query) { return pairs + query * kTileLen / 2; }
};

// Some queries of a block at a tile, from `first` on.
struct TileQueries {
  int32_t first;
  int32_t count;
  int32_t counts[kMaxTileQueries];
  float keep[kMaxTileQueries];
  float smallest[kMaxTileQueries];  // weight that is not 0; of FP8 products
  alignas(64) float scores[kMaxTileQueries * kTileLen];
  TileWeights weights;
};

// E4M3(2^8 w s / S), divided by 2^8 s / S, keeps three bits of w's mantissa whatever the scales are, unless w
// is so small that its code is subnormal. s is a position's scale in a group of columns, S the largest
// attended; both are powers of two.
struct SubnormalWeights {
  float limits[kTileLen];  // weights below them are subnormal
  float units[kTileLen];   // (w + unit) - unit is such a weight rounded
  float largest_limit = 0;

  SubnormalWeights(const float* const* scales, int32_t group, int32_t count) {
    float largest = 0;
    for (int32_t t = 0; t < count; ++t) largest = std::max(largest, scales[t][group]);
    // From this unit on every weight is rounded to 0. Where a scale is NaN, the values are, too.
    constexpr float kLargestUnit = 0x1p46f;
    for (int32_t t = 0; t < kTileLen; ++t) {
      units[t] = t < count ? std::min(kLargestUnit, 0x1p6f * (largest / scales[t][group])) : 0.0f;
      limits[t] = units[t] * 0x1p-20f;
      largest_limit = std::max(largest_limit, limits[t]);
    }
  }
};

uint16_t HighHalf(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

FOREDRAFT_WIDE void RoundMantissas(const float* weights, uint16_t* rounded) {
  for (int32_t t = 0; t < kTileLen; ++t) {
    const uint32_t bits = std::bit_cast<uint32_t>(weights[t]);
    rounded[t] = static_cast<uint16_t>(((bits + 0x7ffffu + ((bits >> 20) & 1u)) & 0xfff00000u) >> 16);
  }
}

// The smallest weight that is not 0. Weights are compared as integers: compilers vectorise the minimum of
// integers, not of floats.
FOREDRAFT_WIDE float SmallestOf(const float* weights) {
  uint32_t smallest = UINT32_MAX;
  for (int32_t t = 0; t < kTileLen; ++t) {
    const uint32_t bits = std::bit_cast<uint32_t>(weights[t]) - 1;  // 0 becomes the largest
    smallest = bits < smallest ? bits : smallest;
  }
  return std::bit_cast<float>(smallest + 1);
}

FOREDRAFT_WIDE void RoundSubnormals(const SubnormalWeights& subnormal, const float* weights,
                                    uint16_t* rounded) {
  for (int32_t t = 0; t < kTileLen; ++t) {
    const uint16_t own = HighHalf((weights[t] + subnormal.units[t]) - subnormal.units[t]);
    rounded[t] = weights[t] < subnormal.limits[t] ? own : rounded[t];
  }
}

// Rounds the weights that tile_softmax has left in `scores`, as if no code were subnormal.
void RoundWeights(TileQueries& queries) {
  uint16_t rounded[kTileLen];
  for (int32_t q = 0; q < queries.count; ++q) {
    const float* const weights = queries.scores + q * kTileLen;
    RoundMantissas(weights, rounded);
    std::memcpy(queries.weights.of(q), rounded, sizeof(rounded));
    queries.smallest[q] = SmallestOf(weights);
  }
}

// Rounds the weights of a group of columns in which some codes are subnormal. If none is, returns false and
// leaves `weights` unwritten.
bool RoundWeightsOf(const float* const* scales, int32_t group, TileQueries& queries, TileWeights& weights) {
  uint16_t rounded[kTileLen];
  bool differ = false;
  int32_t count = queries.counts[0];
  SubnormalWeights subnormal(scales, group, count);
  for (int32_t q = 0; q < queries.count; ++q) {
    if (queries.counts[q] != count) subnormal = SubnormalWeights(scales, group, count = queries.counts[q]);
    if (queries.smallest[q] >= subnormal.largest_limit) continue;
    if (!std::exchange(differ, true)) weights = queries.weights;
    std::memcpy(rounded, weights.of(q), sizeof(rounded));
    RoundSubnormals(subnormal, queries.scores + q * kTileLen, rounded);
    std::memcpy(weights.of(q), rounded, sizeof(rounded));
  }
  return differ;
}

struct ColumnRange {
  int32_t begin;  // a multiple of KvRowLayout::kLatentGroup
  int32_t end;
};

// The inputs of the sums of a tile's values.
struct TileSums {
  const IsaKernels& isa;
  const TileShape& shape;
  const KeyTile& tile;
  RowPrefetch& next;
  const BlockSums& sums;

  // Continues the sums of some columns.
  void Add(const TileQueries& queries, const TileWeights& weights, const ColumnRange& columns) const {
    const int32_t stride = shape.width();
    const int32_t len = columns.end - columns.begin;
    const int32_t width =
        std::min(stride - columns.begin, (len + kValueColumns - 1) / kValueColumns * kValueColumns);
    float* const acc = sums.acc + int64_t{queries.first} * stride + columns.begin;
    if (tile.rows == nullptr) {
      return isa.tile_sum({acc, queries.keep, weights.pairs, tile.values + columns.begin, queries.counts,
                           width, stride, queries.count, &next});
    }
    const uint16_t* values[kTileLen];
    for (int32_t t = 0; t < kTileLen; ++t) values[t] = tile.rows->value[t] + columns.begin;
    isa.row_sums(
        {acc, queries.keep, weights.pairs, values, queries.counts, len, width, stride, queries.count, &next});
  }

  // BF16 holds the rounded weights exactly, so their products with latents equal those of FP8 codes.
  void AddByGroup(TileQueries& queries) const {
    RoundWeights(queries);
    TileWeights of_group;
    for (int32_t begin = 0; begin < shape.value_len; begin += KvRowLayout::kLatentGroup) {
      const ColumnRange columns = {begin, std::min(shape.value_len, begin + KvRowLayout::kLatentGroup)};
      const bool differ = RoundWeightsOf(tile.scales, begin / KvRowLayout::kLatentGroup, queries, of_group);
      Add(queries, differ ? of_group : queries.weights, columns);
    }
  }
};

struct alignas(64) CacheLine {
  float floats[16];
};

size_t LinesOf(size_t floats) { return (floats + 15) / 16; }

}  // namespace

void AttendTile(const IsaKernels& isa, const QueryBlock& block, const KeyTile& tile, int32_t begin,
                int32_t count, bool first, RowPrefetch& next, const BlockSums& sums) {
  TileQueries queries;
  const int32_t pairs = block.shape.pairs();
  const int32_t width = block.shape.width();
  const bool fp8_products = tile.scales != nullptr;
  for (int32_t q = block.FirstAttending(begin); q < block.count; q += kMaxTileQueries) {
    queries.first = q;
    queries.count = std::min(kMaxTileQueries, block.count - q);
    for (int32_t i = 0; i < queries.count; ++i)
      queries.counts[i] = std::min(count, block.last_positions[q + i] + 1 - begin);
    const Bf16Pair* const packed = block.queries + static_cast<int64_t>(q) * pairs;
    if (tile.rows != nullptr) {
      isa.row_scores({queries.scores, packed, tile.rows->a, tile.rows->b, queries.counts, block.shape.a_len,
                      block.shape.b_len, queries.count, &next});
    } else {
      isa.tile_scores({queries.scores, packed, tile.keys, queries.counts, pairs, queries.count, &next});
    }
    isa.tile_softmax({queries.weights.pairs, queries.keep, sums.max + q, sums.sum + q, queries.scores,
                      queries.counts, block.scale, queries.count, first, fp8_products});
    if (first) std::fill_n(sums.acc + int64_t{q} * width, int64_t{queries.count} * width, 0.0f);
    const TileSums add = {isa, block.shape, tile, next, sums};
    fp8_products ? add.AddByGroup(queries) : add.Add(queries, queries.weights, {0, block.shape.value_len});
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
