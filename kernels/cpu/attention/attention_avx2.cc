// Attention over packed tiles with AVX2 and FMA: 8 positions (scores) or 8 columns (sums) per register,
// widened to FP32. One accumulator per query and register, over all pairs in order, the even element first.
// Queries or weights are widened once for a piece of pairs, so that a product loads them once.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

constexpr int kLanes = 8;
constexpr int kBlockLanes = 2 * kLanes;
constexpr int kGroupQueries = 4;  // 8 accumulator registers
constexpr int kPairs = kTileLen / 2;
constexpr int32_t kPiecePairs = 128;

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

// A piece of a query group's factors (queries or weights) in FP32.
struct WidePairs {
  // A group's rows and sums should not lie 4 KB apart: a load of one would wait for a store to the other.
  static constexpr int64_t kStride = 2 * kPiecePairs + 16;
  alignas(32) float x[kGroupQueries][kStride];

  // `count` pairs of each of `queries` rows, `stride` pairs apart.
  void Widen(const Bf16Pair* rows, int64_t stride, int queries, int32_t count) {
    for (int i = 0; i < queries; ++i, rows += stride) {
      int32_t pair = 0;
      for (; pair + 4 <= count; pair += 4) {
        const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + pair));
        _mm256_store_ps(x[i] + 2 * pair,
                        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16)));
      }
      for (; pair < count; ++pair) {
        const uint32_t bits[2] = {rows[pair] << 16, rows[pair] & 0xffff0000u};
        __builtin_memcpy(x[i] + 2 * pair, bits, sizeof(bits));
      }
    }
  }
};

// Adds element `x` of R queries, times 16 lanes, to the sums.
template <int R>
inline void AddElement(const float* x, const __m256 (&lanes)[2], __m256 (&sums)[R][2]) {
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    const __m256 value = _mm256_broadcast_ss(x + i * WidePairs::kStride);
    sums[i][0] = _mm256_fmadd_ps(value, lanes[0], sums[i][0]);
    sums[i][1] = _mm256_fmadd_ps(value, lanes[1], sums[i][1]);
  }
}

// Adds `count` pairs of R queries times 16 lanes of rows `stride` pairs apart.
template <int R>
inline void AddPairs(const float* x, const Bf16Pair* rows, int64_t stride, int32_t count,
                     RowPrefetch& prefetch, __m256 (&sums)[R][2]) {
  for (int32_t pair = 0; pair < count; ++pair, rows += stride, x += 2) {
    PrefetchLine(prefetch);
    const __m256 even[2] = {Even(LoadPairs(rows)), Even(LoadPairs(rows + kLanes))};
    AddElement(x, even, sums);
    const __m256 odd[2] = {Odd(LoadPairs(rows)), Odd(LoadPairs(rows + kLanes))};
    AddElement(x + 1, odd, sums);
  }
}

template <int R>
struct QueryCount {
  static constexpr int value = R;
};

// Calls body(query, count) for groups of queries of about the same size. `count` is a constant.
template <class Body>
inline void ForQueryGroups(int queries, const Body& body) {
  int groups = (queries + kGroupQueries - 1) / kGroupQueries;
  for (int query = 0, size; groups > 0; query += size, --groups) {
    size = (queries - query + groups - 1) / groups;
    switch (size) {
      case 1:
        body(query, QueryCount<1>());
        break;
      case 2:
        body(query, QueryCount<2>());
        break;
      case 3:
        body(query, QueryCount<3>());
        break;
      default:
        body(query, QueryCount<kGroupQueries>());
        break;
    }
  }
}

// Adds pairs [first, first + count) of positions [t, t + 16) to R queries' scores. Neither this nor SumBlock
// is inlined: in callers GCC would keep inner-loop pointers on the stack.
template <int R>
[[gnu::noinline]] void ScoreBlock(const TileScoresArgs& args, const WidePairs& x, int query, int32_t t,
                                  int32_t first, int32_t count) {
  float* const scores = args.scores + query * kTileLen + t;
  __m256 sums[R][2];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    for (int v = 0; v < 2; ++v) {
      sums[i][v] = first == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(scores + i * kTileLen + v * kLanes);
    }
  }
  AddPairs(x.x[0], args.keys + int64_t{first} * kTileLen + t, kTileLen, count, *args.prefetch, sums);
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    for (int v = 0; v < 2; ++v) _mm256_storeu_ps(scores + i * kTileLen + v * kLanes, sums[i][v]);
  }
}

// Sums columns [column, column + 16) of R queries over the pairs of positions that all attend.
template <int R>
[[gnu::noinline]] void SumBlock(const TileSumArgs& args, const WidePairs& weights, int query,
                                int32_t column) {
  const int64_t stride = args.stride;
  float* const acc = args.acc + query * stride + column;
  __m256 sums[R][2];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    const __m256 keep = _mm256_set1_ps(args.keep[query + i]);
    for (int v = 0; v < 2; ++v) {
      sums[i][v] = _mm256_mul_ps(_mm256_loadu_ps(acc + i * stride + v * kLanes), keep);
    }
  }
  AddPairs(weights.x[0], args.values + column, stride, args.counts[query] / 2, *args.prefetch, sums);
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    for (int v = 0; v < 2; ++v) _mm256_storeu_ps(acc + i * stride + v * kLanes, sums[i][v]);
  }
}

// Adds the positions from pair `first` on to 16 columns of one query.
void SumRest(const TileSumArgs& args, const float* weights, int query, int32_t column, int32_t first) {
  const int64_t stride = args.stride;
  const Bf16Pair* const values = args.values + column;
  float* const acc = args.acc + query * stride + column;
  __m256 sums[1][2] = {{_mm256_loadu_ps(acc), _mm256_loadu_ps(acc + kLanes)}};
  const int32_t pairs = args.counts[query] / 2;
  AddPairs(weights + 2 * first, values + first * stride, stride, pairs - first, *args.prefetch, sums);
  if (args.counts[query] % 2 != 0) {  // the other position of the last pair is masked: 0 * NaN is NaN
    const Bf16Pair* const last = values + pairs * stride;
    const __m256 even[2] = {Even(LoadPairs(last)), Even(LoadPairs(last + kLanes))};
    AddElement(weights + 2 * pairs, even, sums);
  }
  for (int v = 0; v < 2; ++v) _mm256_storeu_ps(acc + v * kLanes, sums[0][v]);
}

// Sums all positions of R queries.
template <int R>
void SumQueries(const TileSumArgs& args, const WidePairs& weights, int query, int32_t column) {
  SumBlock<R>(args, weights, query, column);
  const int32_t common = args.counts[query] / 2;
  for (int i = 0; i < R; ++i) {
    if (args.counts[query + i] > 2 * common) SumRest(args, weights.x[i], query + i, column, common);
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

void TileScoresAvx2(const TileScoresArgs& args) {
  WidePairs x;
  for (int32_t first = 0; first < args.pairs; first += kPiecePairs) {
    const int32_t count = args.pairs - first < kPiecePairs ? args.pairs - first : kPiecePairs;
    ForQueryGroups(args.query_count, [&](int query, auto queries) {
      x.Widen(args.queries + static_cast<int64_t>(query) * args.pairs + first, args.pairs, queries.value,
              count);
      const int32_t positions = args.counts[query + queries.value - 1];
      for (int32_t t = 0; t < positions; t += kBlockLanes) {
        ScoreBlock<queries.value>(args, x, query, t, first, count);
      }
    });
  }
}

void TileSumAvx2(const TileSumArgs& args) {
  WidePairs weights;
  ForQueryGroups(args.query_count, [&](int query, auto queries) {
    const int32_t positions = args.counts[query + queries.value - 1];
    weights.Widen(args.weights + query * kPairs, kPairs, queries.value, (positions + 1) / 2);
    for (int32_t column = 0; column < args.width; column += kBlockLanes) {
      SumQueries<queries.value>(args, weights, query, column);
    }
  });
}

}  // namespace foredraft
