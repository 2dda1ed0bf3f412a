// Attention over packed tiles with AVX2 and FMA: 8 positions (scores) or 8 columns (sums) per register,
// widened to FP32. One accumulator per query and register, over all pairs in order, the even element first.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

constexpr int kLanes = 8;
constexpr int kBlockLanes = 2 * kLanes;
constexpr int kBlockQueries = 4;  // 8 registers of sums
constexpr int kPairs = kTileLen / 2;

inline __m256 Even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 Odd(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))));
}
inline __m256i LoadPairs(const Bf16Pair* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
inline void StorePairs(Bf16Pair* x, __m256i pairs) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), pairs);
}

inline void PrefetchLine(RowPrefetch& next) {
  if (next.row == next.count) return;
  _mm_prefetch(static_cast<const char*>(next.rows[next.row]) + next.offset, _MM_HINT_T1);
  next.offset += 64;
  if (next.offset < next.bytes) return;
  next.offset = 0;
  ++next.row;
}

// The 4 pairs of 16 bytes at `column` of 8 rows: out[j][t] = pair j of row t.
inline void TransposeFour(const uint16_t* const* rows, int32_t column, __m256i (&out)[4]) {
  __m256i x[4];  // 128-bit lane l of x[r]: row 4 l + r
  for (int r = 0; r < 4; ++r) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + column));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[4 + r] + column));
    x[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
  const __m256i low01 = _mm256_unpacklo_epi32(x[0], x[1]);
  const __m256i high01 = _mm256_unpackhi_epi32(x[0], x[1]);
  const __m256i low23 = _mm256_unpacklo_epi32(x[2], x[3]);
  const __m256i high23 = _mm256_unpackhi_epi32(x[2], x[3]);
  out[0] = _mm256_unpacklo_epi64(low01, low23);
  out[1] = _mm256_unpackhi_epi64(low01, low23);
  out[2] = _mm256_unpacklo_epi64(high01, high23);
  out[3] = _mm256_unpackhi_epi64(high01, high23);
}

constexpr int kColumnsAtOnce = 8;

// 8 rows of `len` columns.
void PackEight(const uint16_t* const* rows, int32_t len, RowPrefetch& next, Bf16Pair* keys) {
  int32_t column = 0;
  __m256i pairs[4];
  for (; column + kColumnsAtOnce <= len; column += kColumnsAtOnce, keys += 4 * kTileLen) {
    TransposeFour(rows, column, pairs);
    PrefetchLine(next);
    for (int j = 0; j < 4; ++j) StorePairs(keys + j * kTileLen, pairs[j]);
  }
  if (column == len) return;
  uint16_t rest[kLanes][kColumnsAtOnce] = {};
  const uint16_t* rest_rows[kLanes];
  for (int t = 0; t < kLanes; ++t) {
    for (int32_t i = column; i < len; ++i) rest[t][i - column] = rows[t][i];
    rest_rows[t] = rest[t];
  }
  TransposeFour(rest_rows, 0, pairs);
  for (int j = 0; 2 * j < len - column; ++j) StorePairs(keys + j * kTileLen, pairs[j]);
}

// Adds pair `x` of a query, times `lanes`, to the sums.
inline void AddPair(Bf16Pair x, const __m256 (&even)[2], const __m256 (&odd)[2], __m256 (&sums)[2]) {
  const __m256i pair = _mm256_set1_epi32(static_cast<int32_t>(x));
  const __m256 x_even = Even(pair);
  const __m256 x_odd = Odd(pair);
  for (int v = 0; v < 2; ++v) {
    sums[v] = _mm256_fmadd_ps(x_even, even[v], sums[v]);
    sums[v] = _mm256_fmadd_ps(x_odd, odd[v], sums[v]);
  }
}

// The 16 lanes of `rows`, `stride` pairs apart, for pairs [first, end) of R queries, which are `x_stride`
// pairs apart.
template <int R>
inline void AddPairs(const Bf16Pair* x, int64_t x_stride, const Bf16Pair* rows, int64_t stride, int32_t first,
                     int32_t end, RowPrefetch& prefetch, __m256 (*sums)[2]) {
  for (int32_t pair = first; pair < end; ++pair) {
    const __m256i low = LoadPairs(rows + pair * stride);
    const __m256i high = LoadPairs(rows + pair * stride + kLanes);
    const __m256 even[2] = {Even(low), Even(high)};
    const __m256 odd[2] = {Odd(low), Odd(high)};
    PrefetchLine(prefetch);
    for (int i = 0; i < R; ++i) AddPair(x[i * x_stride + pair], even, odd, sums[i]);
  }
}

// Positions [t, t + 16) for R queries.
template <int R>
void ScoreBlock(const TileScoresArgs& args, int query, int32_t t) {
  __m256 sums[R][2];
  for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = _mm256_setzero_ps();
  AddPairs<R>(args.queries + static_cast<int64_t>(query) * args.pairs, args.pairs, args.keys + t, kTileLen, 0,
              args.pairs, *args.prefetch, sums);
  for (int i = 0; i < R; ++i) {
    float* const scores = args.scores + (query + i) * kTileLen + t;
    _mm256_storeu_ps(scores, sums[i][0]);
    _mm256_storeu_ps(scores + kLanes, sums[i][1]);
  }
}

// Columns [column, column + 16) for R queries: the pairs of positions that all of them attend.
template <int R>
void SumBlock(const TileSumArgs& args, int query, int32_t column) {
  const int64_t width = args.width;
  float* const acc = args.acc + query * width + column;
  __m256 sums[R][2];
  for (int i = 0; i < R; ++i) {
    const __m256 keep = _mm256_set1_ps(args.keep[query + i]);
    for (int v = 0; v < 2; ++v) {
      sums[i][v] = _mm256_mul_ps(_mm256_loadu_ps(acc + i * width + v * kLanes), keep);
    }
  }
  AddPairs<R>(args.weights + query * kPairs, kPairs, args.values + column, width, 0, args.counts[query] / 2,
              *args.prefetch, sums);
  for (int i = 0; i < R; ++i) {
    for (int v = 0; v < 2; ++v) _mm256_storeu_ps(acc + i * width + v * kLanes, sums[i][v]);
  }
}

// Adds the positions from pair `first` on to 16 columns of one query.
void SumRest(const TileSumArgs& args, int query, int32_t column, int32_t first) {
  const int64_t width = args.width;
  const Bf16Pair* const weights = args.weights + query * kPairs;
  const Bf16Pair* const values = args.values + column;
  float* const acc = args.acc + query * width + column;
  __m256 sums[1][2] = {{_mm256_loadu_ps(acc), _mm256_loadu_ps(acc + kLanes)}};
  const int32_t pairs = args.counts[query] / 2;
  AddPairs<1>(weights, kPairs, values, width, first, pairs, *args.prefetch, sums);
  if (args.counts[query] % 2 != 0) {  // the other position of the last pair is masked: 0 * NaN is NaN
    const __m256 weight = Even(_mm256_set1_epi32(static_cast<int32_t>(weights[pairs])));
    for (int v = 0; v < 2; ++v) {
      const __m256 value = Even(LoadPairs(values + pairs * width + v * kLanes));
      sums[0][v] = _mm256_fmadd_ps(weight, value, sums[0][v]);
    }
  }
  for (int v = 0; v < 2; ++v) _mm256_storeu_ps(acc + v * kLanes, sums[0][v]);
}

// R queries, all their positions.
template <int R>
void SumQueries(const TileSumArgs& args, int query, int32_t column) {
  SumBlock<R>(args, query, column);
  const int32_t common = args.counts[query] / 2;
  for (int i = 0; i < R; ++i) {
    if (args.counts[query + i] > 2 * common) SumRest(args, query + i, column, common);
  }
}

}  // namespace

void PackKeysAvx2(const PackKeysArgs& args) {
  for (int t = 0; t < args.count; t += kLanes)
    PackEight(args.rows + t, args.len, *args.prefetch, args.keys + t);
}

void PackValuesAvx2(const PackValuesArgs& args) {
  for (int32_t pair = 0; 2 * pair < args.count; ++pair) {
    const uint16_t* const even = args.rows[2 * pair];
    const uint16_t* const odd = args.rows[2 * pair + 1];
    Bf16Pair* const out = args.values + static_cast<int64_t>(pair) * args.width;
    int32_t i = 0;
    for (; i + kBlockLanes <= args.len; i += kBlockLanes) {
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + i));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + i));
      const __m256i low = _mm256_unpacklo_epi16(a, b);
      const __m256i high = _mm256_unpackhi_epi16(a, b);
      StorePairs(out + i, _mm256_permute2x128_si256(low, high, 0x20));
      StorePairs(out + i + kLanes, _mm256_permute2x128_si256(low, high, 0x31));
    }
    for (; i < args.len; ++i) out[i] = even[i] | static_cast<Bf16Pair>(odd[i]) << 16;
    for (; i < args.width; ++i) out[i] = 0;
  }
}

// 16 positions of the keys, or 16 columns of the values, stay in the cache for all queries.
void TileScoresAvx2(const TileScoresArgs& args) {
  for (int32_t t = 0; t < kTileLen; t += kBlockLanes) {
    int query = 0;
    for (; query + kBlockQueries <= args.query_count; query += kBlockQueries) {
      if (t < args.counts[query + kBlockQueries - 1]) ScoreBlock<kBlockQueries>(args, query, t);
    }
    for (; query < args.query_count; ++query) {
      if (t < args.counts[query]) ScoreBlock<1>(args, query, t);
    }
  }
}

void TileSumAvx2(const TileSumArgs& args) {
  for (int32_t column = 0; column < args.width; column += kBlockLanes) {
    int query = 0;
    for (; query + kBlockQueries <= args.query_count; query += kBlockQueries) {
      SumQueries<kBlockQueries>(args, query, column);
    }
    for (; query < args.query_count; ++query) SumQueries<1>(args, query, column);
  }
}

}  // namespace foredraft
