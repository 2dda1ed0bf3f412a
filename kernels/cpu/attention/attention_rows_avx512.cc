// Attention over rows of the cache as they lie in memory, with VDPBF16PS. Scores take 16 pairs of a query and
// a position per instruction. Sums interleave two rows in registers and take 16 columns of a pair of
// positions per instruction, with tile_sum's bits. For few queries, packing values takes longer than summing
// them. Interleaving reorders columns within blocks of 32; sums keep that order until order_sums.

#include <immintrin.h>

#include "kernels/cpu/attention/attention_avx512.h"
#include "kernels/cpu/common/unpacked_avx512.h"
#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

// The next row, which the caller's loop prefetches line by line: advancing RowPrefetch's cursor there would
// take registers and a quarter of the loop's time. Past the last row, returns `present`.
inline const char* NextRow(RowPrefetch& next, const uint16_t* present) {
  if (next.row == next.count) return reinterpret_cast<const char*>(present);
  return static_cast<const char*>(next.rows[next.row++]);
}

// ---- scores ----

constexpr int kRowQueries = 4;  // with as many positions, 16 accumulator registers

// The sums of the lanes of sums[i][v], at 4 * i + v.
template <int R>
inline __m512 AddLanes(const __m512 (&sums)[R][kRowQueries]) {
  __m512 of_query[4];
  FOREDRAFT_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (i >= R) {
      of_query[i] = _mm512_setzero_ps();
      continue;
    }
    const auto add = [](__m512 x, __m512 y) {
      return _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
    };
    const __m512d first = _mm512_castps_pd(add(sums[i][0], sums[i][1]));
    const __m512d second = _mm512_castps_pd(add(sums[i][2], sums[i][3]));
    of_query[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(first, second)),
                                _mm512_castpd_ps(_mm512_unpackhi_pd(first, second)));
  }
  // Adds 128-bit lanes 0 + 2 and 1 + 3 of two queries, then both sums of four.
  const auto add = [](__m512 x, __m512 y) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  };
  const __m512 first = add(of_query[0], of_query[1]);
  const __m512 second = add(of_query[2], of_query[3]);
  return _mm512_add_ps(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));
}

// Scores R queries at positions [t, t + 4).
template <int R>
void ScoreRows(const RowScoresArgs& args, int query, int32_t t) {
  const char* ahead = NextRow(*args.prefetch, args.a[t]);
  const int64_t a_pairs = (args.a_len + 1) / 2;
  const int64_t pairs = a_pairs + (args.b_len + 1) / 2;
  const Bf16Pair* const queries = args.queries + query * pairs;
  __m512 sums[R][kRowQueries];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    FOREDRAFT_UNROLL
    for (int v = 0; v < kRowQueries; ++v) sums[i][v] = _mm512_setzero_ps();
  }
  const auto add_part = [&](const Bf16Pair* x, const uint16_t* const* rows, int32_t len) {
    const auto add = [&](int32_t column, const auto& load) {
      __m512i key[kRowQueries];
      FOREDRAFT_UNROLL
      for (int v = 0; v < kRowQueries; ++v) key[v] = load(rows[v] + column);
      _mm_prefetch(ahead, _MM_HINT_T1);
      ahead += 64;
      FOREDRAFT_UNROLL
      for (int i = 0; i < R; ++i) {
        const __m512i xi = load(reinterpret_cast<const uint16_t*>(x + i * pairs) + column);
        FOREDRAFT_UNROLL
        for (int v = 0; v < kRowQueries; ++v) sums[i][v] = Dot(sums[i][v], key[v], xi);
      }
    };
    int32_t column = 0;
    for (; column + kWordsOfVector <= len; column += kWordsOfVector) {
      add(column, [](const uint16_t* words) { return _mm512_loadu_si512(words); });
    }
    if (column == len) return;
    const __mmask32 rest = (1u << (len - column)) - 1;
    add(column, [rest](const uint16_t* words) { return _mm512_maskz_loadu_epi16(rest, words); });
  };
  add_part(queries, args.a + t, args.a_len);
  add_part(queries + a_pairs, args.b + t, args.b_len);
  const __m512 scores = AddLanes(sums);
  float* const out = args.scores + query * kTileLen + t;
  _mm_storeu_ps(out, _mm512_castps512_ps128(scores));
  if constexpr (R > 1) _mm_storeu_ps(out + kTileLen, _mm512_extractf32x4_ps(scores, 1));
  if constexpr (R > 2) _mm_storeu_ps(out + 2 * kTileLen, _mm512_extractf32x4_ps(scores, 2));
  if constexpr (R > 3) _mm_storeu_ps(out + 3 * kTileLen, _mm512_extractf32x4_ps(scores, 3));
}

// `count` queries, at most Max.
template <int Max = kRowQueries>
void ScoreFewRows(const RowScoresArgs& args, int query, int count, int32_t t) {
  if constexpr (Max > 1) {
    if (count < Max) return ScoreFewRows<Max - 1>(args, query, count, t);
  }
  if (t < args.counts[query + Max - 1]) ScoreRows<Max>(args, query, t);
}

// ---- sums ----

constexpr int kSumQueries = 12;  // 24 accumulator registers

// The inverse of ToColumns.
inline void ToLanes(__m512 (&sums)[2]) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  const __m512 low = _mm512_permutex2var_ps(sums[0], first, sums[1]);
  sums[1] = _mm512_permutex2var_ps(sums[0], second, sums[1]);
  sums[0] = low;
}

// 32 columns, or fewer at the end of a row.
struct Columns {
  int32_t first;
  __mmask32 words;
  __mmask16 sums[2];

  Columns(int32_t column, int32_t len, int32_t width) : first(column) {
    const auto low_bits = [](int32_t count) {
      return count >= 32 ? ~uint32_t{0} : (uint32_t{1} << count) - 1;
    };
    words = low_bits(len - column);
    const uint32_t kept = low_bits(width - column);
    sums[0] = static_cast<__mmask16>(kept);
    sums[1] = static_cast<__mmask16>(kept >> 16);
  }
  // Blocks of fewer columns have no room for unpacking's order.
  bool whole() const { return sums[1] == 0xffff; }
  void Load(const float* acc, __m512 (&out)[2]) const {
    for (int j = 0; j < 2; ++j) out[j] = _mm512_maskz_loadu_ps(sums[j], acc + j * kLanes);
    if (!whole()) ToLanes(out);
  }
  void Store(__m512 (&out)[2], float* acc) const {
    if (!whole()) ToColumns(out);
    for (int j = 0; j < 2; ++j) _mm512_mask_storeu_ps(acc + j * kLanes, sums[j], out[j]);
  }
  __m512i Words(const uint16_t* row) const { return _mm512_maskz_loadu_epi16(words, row + first); }
};

// Sums the columns of R queries over the pairs of positions that all attend.
template <int R>
[[gnu::noinline]] void SumRows(const RowSumArgs& args, int query, const Columns& columns) {
  const Bf16Pair* const weights = args.weights + query * kPairs;
  float* const acc = args.acc + int64_t{query} * args.stride + columns.first;
  __m512 sums[R][2];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    const __m512 keep = _mm512_set1_ps(args.keep[query + i]);
    columns.Load(acc + int64_t{i} * args.stride, sums[i]);
    FOREDRAFT_UNROLL
    for (int j = 0; j < 2; ++j) sums[i][j] = _mm512_mul_ps(sums[i][j], keep);
  }
  const int32_t pairs = args.counts[query] / 2;
  const char* const ahead[2] = {NextRow(*args.prefetch, args.values[0]),
                                NextRow(*args.prefetch, args.values[0])};
  const int32_t last_line = args.prefetch->bytes - 1;
  for (int32_t pair = 0; pair < pairs; ++pair) {
    const int32_t line = 64 * pair < last_line ? 64 * pair : last_line;
    for (const char* row : ahead) _mm_prefetch(row + line, _MM_HINT_T1);
    const __m512i even = columns.Words(args.values[2 * pair]), odd = columns.Words(args.values[2 * pair + 1]);
    const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      const __m512i weight = BroadcastPair(weights + i * kPairs + pair);
      sums[i][0] = Dot(sums[i][0], low, weight);
      sums[i][1] = Dot(sums[i][1], high, weight);
    }
  }
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) columns.Store(sums[i], acc + int64_t{i} * args.stride);
}

// Adds one query's positions from pair `first` on.
void SumRest(const RowSumArgs& args, int query, const Columns& columns, int32_t first) {
  const Bf16Pair* const weights = args.weights + query * kPairs;
  float* const acc = args.acc + int64_t{query} * args.stride + columns.first;
  __m512 sums[2];
  columns.Load(acc, sums);
  const auto add = [&](__m512i even, __m512i odd, __m512i weight) {
    sums[0] = Dot(sums[0], _mm512_unpacklo_epi16(even, odd), weight);
    sums[1] = Dot(sums[1], _mm512_unpackhi_epi16(even, odd), weight);
  };
  const int32_t pairs = args.counts[query] / 2;
  for (int32_t pair = first; pair < pairs; ++pair) {
    add(columns.Words(args.values[2 * pair]), columns.Words(args.values[2 * pair + 1]),
        BroadcastPair(weights + pair));
  }
  if (args.counts[query] % 2 != 0) {  // the other position of the last pair is masked: 0 * NaN is NaN
    const __m512i weight = _mm512_and_si512(BroadcastPair(weights + pairs), _mm512_set1_epi32(0xffff));
    add(columns.Words(args.values[2 * pairs]), _mm512_setzero_si512(), weight);
  }
  columns.Store(sums, acc);
}

// `count` queries, at most Max.
template <int Max = kSumQueries>
void SumFewRows(const RowSumArgs& args, int query, int count, const Columns& columns) {
  if constexpr (Max > 1) {
    if (count < Max) return SumFewRows<Max - 1>(args, query, count, columns);
  }
  SumRows<Max>(args, query, columns);
  const int32_t common = args.counts[query] / 2;
  for (int i = 0; i < Max; ++i) {
    if (args.counts[query + i] > 2 * common) SumRest(args, query + i, columns, common);
  }
}

}  // namespace

// Scores few positions at a time, which all queries find in the first-level cache.
void RowScoresAvx512(const RowScoresArgs& args) {
  const int blocks = (args.query_count + kRowQueries - 1) / kRowQueries;
  for (int32_t t = 0; t < args.counts[args.query_count - 1]; t += kRowQueries) {
    for (int block = 0; block < blocks; ++block) {
      const int query = args.query_count * block / blocks;
      ScoreFewRows(args, query, args.query_count * (block + 1) / blocks - query, t);
    }
  }
}

// All queries take 32 columns, which stay in the first-level cache meanwhile, before the next 32.
void RowSumsAvx512(const RowSumArgs& args) {
  const int blocks = (args.query_count + kSumQueries - 1) / kSumQueries;
  for (int32_t column = 0; column < args.width; column += kWordsOfVector) {
    const Columns columns(column, args.len, args.width);
    for (int block = 0; block < blocks; ++block) {
      const int query = args.query_count * block / blocks;
      SumFewRows(args, query, args.query_count * (block + 1) / blocks - query, columns);
    }
  }
}

void OrderSumsAvx512(float* acc, int32_t width) {
  for (int32_t column = 0; column + kWordsOfVector <= width; column += kWordsOfVector) {
    __m512 sums[2] = {_mm512_loadu_ps(acc + column), _mm512_loadu_ps(acc + column + kLanes)};
    ToColumns(sums);
    _mm512_storeu_ps(acc + column, sums[0]);
    _mm512_storeu_ps(acc + column + kLanes, sums[1]);
  }
}

}  // namespace foredraft
