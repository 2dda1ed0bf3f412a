// Attention over packed tiles with VDPBF16PS: 16 positions (scores) or 16 columns (sums) per register, a pair
// of elements or of positions per instruction. One accumulator per query and register, over all pairs in
// order.

#include "kernels/cpu/attention/attention_avx512.h"

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

// ---- packing ----

// The 4 pairs of 16 bytes at `column` of 16 rows: out[j][t] = pair j of row t.
inline void TransposeFour(const uint16_t* const* rows, int32_t column, __m512i (&out)[4]) {
  __m512i x[4];  // 128-bit lane l of x[r]: row 4 l + r
  for (int r = 0; r < 4; ++r) {
    const auto bytes = [&](int lane) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[4 * lane + r] + column));
    };
    x[r] = _mm512_castsi128_si512(bytes(0));
    x[r] = _mm512_mask_broadcast_i32x4(x[r], 0x00f0, bytes(1));
    x[r] = _mm512_mask_broadcast_i32x4(x[r], 0x0f00, bytes(2));
    x[r] = _mm512_mask_broadcast_i32x4(x[r], 0xf000, bytes(3));
  }
  const __m512i low01 = _mm512_unpacklo_epi32(x[0], x[1]);
  const __m512i high01 = _mm512_unpackhi_epi32(x[0], x[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(x[2], x[3]);
  const __m512i high23 = _mm512_unpackhi_epi32(x[2], x[3]);
  out[0] = _mm512_unpacklo_epi64(low01, low23);
  out[1] = _mm512_unpackhi_epi64(low01, low23);
  out[2] = _mm512_unpacklo_epi64(high01, high23);
  out[3] = _mm512_unpackhi_epi64(high01, high23);
}

constexpr int kColumnsAtOnce = 8;

// Packs 16 rows of `len` columns.
void PackSixteen(const uint16_t* const* rows, int32_t len, RowPrefetch& next, Bf16Pair* keys) {
  int32_t column = 0;
  __m512i pairs[4];
  for (; column + kColumnsAtOnce <= len; column += kColumnsAtOnce, keys += 4 * kTileLen) {
    TransposeFour(rows, column, pairs);
    PrefetchLine(next);
    for (int j = 0; j < 4; ++j) _mm512_storeu_si512(keys + j * kTileLen, pairs[j]);
  }
  if (column == len) return;
  uint16_t rest[kLanes][kColumnsAtOnce] = {};
  const uint16_t* rest_rows[kLanes];
  for (int t = 0; t < kLanes; ++t) {
    for (int32_t i = column; i < len; ++i) rest[t][i - column] = rows[t][i];
    rest_rows[t] = rest[t];
  }
  TransposeFour(rest_rows, 0, pairs);
  for (int j = 0; 2 * j < len - column; ++j) _mm512_storeu_si512(keys + j * kTileLen, pairs[j]);
}

// Columns [i, i + 32) of two rows as pairs.
inline void Interleave(__m512i even, __m512i odd, __m512i& first, __m512i& second) {
  const __m512i low_first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i low_second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512i low = _mm512_unpacklo_epi16(even, odd);
  const __m512i high = _mm512_unpackhi_epi16(even, odd);
  first = _mm512_permutex2var_epi64(low, low_first, high);
  second = _mm512_permutex2var_epi64(low, low_second, high);
}

// ---- scores ----

// Adds the dots of pairs [first, end) of R queries with V registers of positions to the scores; `first` 0
// begins them.
template <int R, int V>
void ScoreBlock(const TileScoresArgs& args, int query, int32_t first, int32_t end) {
  const Bf16Pair* x[R];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) x[i] = args.queries + static_cast<int64_t>(query + i) * args.pairs;
  float* const scores = args.scores + query * kTileLen;
  __m512 sums[R][V];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    FOREDRAFT_UNROLL
    for (int v = 0; v < V; ++v) {
      sums[i][v] = first == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(scores + i * kTileLen + v * kLanes);
    }
  }
  for (int32_t pair = first; pair < end; ++pair) {
    const Bf16Pair* const keys = args.keys + static_cast<int64_t>(pair) * kTileLen;
    __m512i key[V];
    FOREDRAFT_UNROLL
    for (int v = 0; v < V; ++v) key[v] = LoadPairs(keys + v * kLanes);
    PrefetchLine(*args.prefetch);
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      const __m512i pair_of_query = BroadcastPair(x[i] + pair);
      FOREDRAFT_UNROLL
      for (int v = 0; v < V; ++v) sums[i][v] = Dot(sums[i][v], key[v], pair_of_query);
    }
  }
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    FOREDRAFT_UNROLL
    for (int v = 0; v < V; ++v) _mm512_storeu_ps(scores + i * kTileLen + v * kLanes, sums[i][v]);
  }
}

constexpr int kBlockQueries = 6;       // 24 accumulator registers
constexpr int32_t kPairsInCache = 96;  // 24 KB of keys, reused by all blocks of queries

// `count` queries, at most Max.
template <int Max = kBlockQueries>
void ScoreQueries(const TileScoresArgs& args, int query, int count, int32_t first, int32_t end) {
  if constexpr (Max > 1) {
    if (count < Max) return ScoreQueries<Max - 1>(args, query, count, first, end);
  }
  switch ((args.counts[query + Max - 1] + kLanes - 1) / kLanes) {
    case 1:
      return ScoreBlock<Max, 1>(args, query, first, end);
    case 2:
      return ScoreBlock<Max, 2>(args, query, first, end);
    case 3:
      return ScoreBlock<Max, 3>(args, query, first, end);
    default:
      return ScoreBlock<Max, 4>(args, query, first, end);
  }
}

// ---- softmax ----

// e^x within 2 units in the last place for x <= 0; below -104, where no float is nearer than 0, it is 0.
inline __m512 Exp(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-105.0f), x);  // NaN stays NaN
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.69314575195f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
  // Taylor series to the 7th power: the remainder is below 6e-9.
  constexpr float kTaylor[] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
  __m512 y = _mm512_set1_ps(1.0f / 5040.0f);
  for (int i = 0; i < 7; ++i) y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(kTaylor[i]));
  return _mm512_scalef_ps(y, n);
}

// The scores of one query times the scale; -infinity for positions that it does not attend.
struct Scaled {
  __m512 scores[4];
  __mmask16 masks[4];

  Scaled(const TileSoftmaxArgs& args, int32_t q) {
    const float* const x = args.scores + q * kTileLen;
    const uint64_t attended = args.counts[q] == kTileLen ? ~uint64_t{0} : (uint64_t{1} << args.counts[q]) - 1;
    for (int v = 0; v < 4; ++v) {
      masks[v] = static_cast<__mmask16>(attended >> (v * kLanes));
      scores[v] = _mm512_mask_mul_ps(_mm512_set1_ps(-__builtin_inff()), masks[v],
                                     _mm512_loadu_ps(x + v * kLanes), _mm512_set1_ps(args.scale));
    }
  }

  float Max() const {
    return _mm512_reduce_max_ps(
        _mm512_max_ps(_mm512_max_ps(scores[0], scores[1]), _mm512_max_ps(scores[2], scores[3])));
  }
};

// Writes the weights of one query and returns their sum. exact: [64] unrounded weights, or null.
template <int V>
inline float Weights(const Scaled& scaled, float max, Bf16Pair* weights, float* exact) {
  __m512 weight[4];
  for (int v = 0; v < 4; ++v) {
    weight[v] = v < V ? _mm512_maskz_mov_ps(scaled.masks[v],
                                            Exp(_mm512_sub_ps(scaled.scores[v], _mm512_set1_ps(max))))
                      : _mm512_setzero_ps();
  }
  for (int v = 0; exact != nullptr && v < 4; ++v) _mm512_storeu_ps(exact + v * kLanes, weight[v]);
  for (int half = 0; half < 2; ++half) {
    _mm512_storeu_si512(weights + half * kLanes, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
                                                     weight[2 * half + 1], weight[2 * half])));
  }
  return _mm512_reduce_add_ps(
      _mm512_add_ps(_mm512_add_ps(weight[0], weight[1]), _mm512_add_ps(weight[2], weight[3])));
}

// ---- sums ----

// Sums C registers of columns from `column` on, for R queries, over the pairs of positions that all attend.
template <int R, int C>
void SumBlock(const TileSumArgs& args, int query, int32_t column) {
  const int64_t stride = args.stride;
  const Bf16Pair* const weights = args.weights + query * kPairs;
  const Bf16Pair* values = args.values + column;
  float* const acc = args.acc + query * stride + column;
  __m512 sums[R][C];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    const __m512 keep = _mm512_set1_ps(args.keep[query + i]);
    FOREDRAFT_UNROLL
    for (int c = 0; c < C; ++c) {
      sums[i][c] = _mm512_mul_ps(_mm512_loadu_ps(acc + i * stride + c * kLanes), keep);
    }
  }
  const int32_t pairs = args.counts[query] / 2;
  for (int32_t pair = 0; pair < pairs; ++pair, values += stride) {
    __m512i value[C];
    FOREDRAFT_UNROLL
    for (int c = 0; c < C; ++c) value[c] = LoadPairs(values + c * kLanes);
    PrefetchLine(*args.prefetch);
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      const __m512i weight = BroadcastPair(weights + i * kPairs + pair);
      FOREDRAFT_UNROLL
      for (int c = 0; c < C; ++c) sums[i][c] = Dot(sums[i][c], value[c], weight);
    }
  }
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    FOREDRAFT_UNROLL
    for (int c = 0; c < C; ++c) _mm512_storeu_ps(acc + i * stride + c * kLanes, sums[i][c]);
  }
}

// Adds the positions from pair `first` on to C registers of columns of one query.
template <int C>
void SumRest(const TileSumArgs& args, int query, int32_t column, int32_t first) {
  const int64_t stride = args.stride;
  const Bf16Pair* const weights = args.weights + query * kPairs;
  const Bf16Pair* const values = args.values + column;
  float* const acc = args.acc + query * stride + column;
  __m512 sums[C];
  FOREDRAFT_UNROLL
  for (int c = 0; c < C; ++c) sums[c] = _mm512_loadu_ps(acc + c * kLanes);
  const int32_t pairs = args.counts[query] / 2;
  for (int32_t pair = first; pair < pairs; ++pair) {
    const __m512i weight = BroadcastPair(weights + pair);
    FOREDRAFT_UNROLL
    for (int c = 0; c < C; ++c)
      sums[c] = Dot(sums[c], LoadPairs(values + pair * stride + c * kLanes), weight);
  }
  if (args.counts[query] % 2 != 0) {  // the other position of the last pair is masked: 0 * NaN is NaN
    const __m512i even = _mm512_set1_epi32(0xffff);
    const __m512i weight = _mm512_and_si512(BroadcastPair(weights + pairs), even);
    FOREDRAFT_UNROLL
    for (int c = 0; c < C; ++c) {
      sums[c] = Dot(sums[c], _mm512_and_si512(LoadPairs(values + pairs * stride + c * kLanes), even), weight);
    }
  }
  FOREDRAFT_UNROLL
  for (int c = 0; c < C; ++c) _mm512_storeu_ps(acc + c * kLanes, sums[c]);
}

// `count` queries, at most Max.
template <int C, int Max = kBlockQueries>
void SumQueries(const TileSumArgs& args, int query, int count, int32_t column) {
  if constexpr (Max > 1) {
    if (count < Max) return SumQueries<C, Max - 1>(args, query, count, column);
  }
  SumBlock<Max, C>(args, query, column);
  const int32_t common = args.counts[query] / 2;
  for (int i = 0; i < Max; ++i) {
    if (args.counts[query + i] > 2 * common) SumRest<C>(args, query + i, column, common);
  }
}

template <int C>
void SumColumns(const TileSumArgs& args, int32_t column) {
  const int blocks = (args.query_count + kBlockQueries - 1) / kBlockQueries;
  for (int block = 0; block < blocks; ++block) {
    const int query = args.query_count * block / blocks;
    SumQueries<C>(args, query, args.query_count * (block + 1) / blocks - query, column);
  }
}

}  // namespace

void PackKeysAvx512(const PackKeysArgs& args) {
  for (int t = 0; t < args.count; t += kLanes)
    PackSixteen(args.rows + t, args.len, *args.prefetch, args.keys + t);
}

void PackValuesAvx512(const PackValuesArgs& args) {
  for (int32_t pair = 0; 2 * pair < args.count; ++pair) {
    const uint16_t* const even = args.rows[2 * pair];
    const uint16_t* const odd = args.rows[2 * pair + 1];
    Bf16Pair* const out = args.values + static_cast<int64_t>(pair) * args.width;
    __m512i first, second;
    int32_t i = 0;
    for (; i + kWordsOfVector <= args.len; i += kWordsOfVector) {
      PrefetchLine(*args.prefetch);
      Interleave(_mm512_loadu_si512(even + i), _mm512_loadu_si512(odd + i), first, second);
      _mm512_storeu_si512(out + i, first);
      _mm512_storeu_si512(out + i + kLanes, second);
    }
    if (i == args.width) continue;
    const int32_t left = args.len - i;
    const __mmask32 mask = static_cast<__mmask32>((uint64_t{1} << left) - 1);
    Interleave(_mm512_maskz_loadu_epi16(mask, even + i), _mm512_maskz_loadu_epi16(mask, odd + i), first,
               second);
    _mm512_storeu_si512(out + i, first);
    if (left > kLanes) _mm512_storeu_si512(out + i + kLanes, second);
  }
}

// Blocks of queries and pieces of keys are sized for registers and caches; they do not change bits.
void TileScoresAvx512(const TileScoresArgs& args) {
  const int blocks = (args.query_count + kBlockQueries - 1) / kBlockQueries;
  for (int32_t first = 0; first < args.pairs; first += kPairsInCache) {
    const int32_t end = args.pairs - first < kPairsInCache ? args.pairs : first + kPairsInCache;
    for (int block = 0; block < blocks; ++block) {
      const int query = args.query_count * block / blocks;
      ScoreQueries(args, query, args.query_count * (block + 1) / blocks - query, first, end);
    }
  }
}

// Maxima are computed first, then weights: in one loop, a query's weights would wait for its maximum, and the
// core does not look far enough ahead to begin the next query meanwhile.
void TileSoftmaxAvx512(const TileSoftmaxArgs& args) {
  float added[kMaxTileQueries];
  for (int32_t q = 0; q < args.query_count; ++q) {
    const Scaled scaled(args, q);
    float max = scaled.Max();
    if (!args.first) max = max > args.max[q] ? max : args.max[q];
    args.keep[q] = args.first ? 0.0f : args.max[q] - max;
    args.max[q] = max;
  }
  for (int32_t q = 0; q < args.query_count; ++q) {
    const Scaled scaled(args, q);
    Bf16Pair* const weights = args.weights + q * kPairs;
    float* const exact = args.keeps_scores ? args.scores + q * kTileLen : nullptr;
    added[q] = args.counts[q] > 2 * kLanes ? Weights<4>(scaled, args.max[q], weights, exact)
                                           : Weights<2>(scaled, args.max[q], weights, exact);
  }
  for (int32_t q = 0; q < args.query_count; q += kLanes) {
    const int32_t left = args.query_count - q;
    const __mmask16 mask = static_cast<__mmask16>(left < kLanes ? (1u << left) - 1 : 0xffffu);
    const __m512 sum = _mm512_maskz_loadu_ps(mask, added + q);
    if (args.first) {
      _mm512_mask_storeu_ps(args.sum + q, mask, sum);
      continue;
    }
    const __m512 keep = Exp(_mm512_maskz_loadu_ps(mask, args.keep + q));
    const __m512 kept = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, args.sum + q), keep);
    _mm512_mask_storeu_ps(args.keep + q, mask, keep);
    _mm512_mask_storeu_ps(args.sum + q, mask, _mm512_add_ps(kept, sum));
  }
}

void TileSumAvx512(const TileSumArgs& args) {
  int32_t column = 0;
  for (; column + 4 * kLanes <= args.width; column += 4 * kLanes) SumColumns<4>(args, column);
  for (; column < args.width; column += kLanes) SumColumns<1>(args, column);
}

}  // namespace foredraft
