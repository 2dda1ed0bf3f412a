// Scores and weighted sums of attention with AVX-512.

#include <immintrin.h>

#include "kernels/cpu/isa.h"

namespace foredraft {
namespace {

inline __m512bh AsBf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

inline __mmask32 TailMask(int32_t count) { return static_cast<__mmask32>((uint64_t{1} << count) - 1); }

// Q queries x T rows: sums[q][t] += 32 products a step; the ragged end is loaded under a mask.
template <int Q, int T>
inline void AddDots(const uint16_t* const* queries, const uint16_t* const* rows, int32_t len,
                    __m512 (&sums)[Q][T]) {
  for (int32_t i = 0; i < len; i += 32) {
    const __mmask32 mask = len - i >= 32 ? ~__mmask32{0} : TailMask(len - i);
    __m512bh row[T];
    for (int t = 0; t < T; ++t) row[t] = AsBf16(_mm512_maskz_loadu_epi16(mask, rows[t] + i));
    for (int q = 0; q < Q; ++q) {
      const __m512bh query = AsBf16(_mm512_maskz_loadu_epi16(mask, queries[q] + i));
      for (int t = 0; t < T; ++t) sums[q][t] = _mm512_dpbf16_ps(sums[q][t], query, row[t]);
    }
  }
}

// The sums of four registers: within each 128 bits (x0 + x2) + (x1 + x3), then those.
inline __m128 ReduceFour(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 low = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
  const __m512 high = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
  const __m512 abcd = _mm512_add_ps(low, high);
  const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

constexpr int kRowBlock = 4;

// Scores of Q queries with T rows from `first` on.
template <int Q, int T>
void ScoreBlock(const AttentionScoresArgs& args, int32_t query, int32_t first) {
  __m512 sums[Q][T];
  for (int q = 0; q < Q; ++q) {
    for (int t = 0; t < T; ++t) sums[q][t] = _mm512_setzero_ps();
  }
  AddDots(args.a + query, args.a_rows + first, args.a_len, sums);
  AddDots(args.b + query, args.b_rows + first, args.b_len, sums);
  for (int q = 0; q < Q; ++q) {
    float* scores = args.scores + (query + q) * args.stride + first;
    if constexpr (T == kRowBlock) {
      _mm_storeu_ps(scores, ReduceFour(sums[q][0], sums[q][1], sums[q][2], sums[q][3]));
    } else {
      const __m512 zero = _mm512_setzero_ps();
      for (int t = 0; t < T; ++t) scores[t] = _mm_cvtss_f32(ReduceFour(sums[q][t], zero, zero, zero));
    }
  }
}

template <int Q>
void ScoreQueries(const AttentionScoresArgs& args, int32_t query) {
  int32_t t = 0;
  for (; t + kRowBlock <= args.count; t += kRowBlock) ScoreBlock<Q, kRowBlock>(args, query, t);
  for (; t < args.count; ++t) ScoreBlock<Q, 1>(args, query, t);
}

inline __m512 LoadBf16(const uint16_t* x, __mmask16 mask) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x)), 16));
}

// Columns [first, first + 16 N) of Q queries: the sums stay in registers over all rows. `tail` masks the last
// 16.
template <int Q, int N>
void SumColumns(const WeightedSumArgs& args, int32_t query, int32_t first, __mmask16 tail) {
  __m512 sums[Q][N];
  for (int q = 0; q < Q; ++q) {
    for (int i = 0; i < N; ++i) sums[q][i] = _mm512_setzero_ps();
  }
  const float* weights = args.weights + query * args.stride;
  for (int32_t t = 0; t < args.count; ++t) {
    __m512 row[N];
    for (int i = 0; i < N; ++i) {
      row[i] = LoadBf16(args.rows[t] + first + 16 * i, i == N - 1 ? tail : ~__mmask16{0});
    }
    for (int q = 0; q < Q; ++q) {
      const __m512 weight = _mm512_set1_ps(weights[q * args.stride + t]);
      for (int i = 0; i < N; ++i) sums[q][i] = _mm512_fmadd_ps(weight, row[i], sums[q][i]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    for (int i = 0; i < N; ++i) {
      const __mmask16 mask = i == N - 1 ? tail : ~__mmask16{0};
      _mm512_mask_storeu_ps(args.out[query + q] + first + 16 * i, mask, sums[q][i]);
    }
  }
}

template <int Q>
void SumQueries(const WeightedSumArgs& args, int32_t query) {
  const __mmask16 all = ~__mmask16{0};
  int32_t i = 0;
  for (; i + 64 <= args.len; i += 64) SumColumns<Q, 4>(args, query, i, all);
  for (; i < args.len; i += 16) {
    const __mmask16 tail = args.len - i >= 16 ? all : static_cast<__mmask16>(TailMask(args.len - i));
    SumColumns<Q, 1>(args, query, i, tail);
  }
}

}  // namespace

void AttentionScoresAvx512(const AttentionScoresArgs& args) {
  int32_t query = 0;
  for (; query + 4 <= args.queries; query += 4) ScoreQueries<4>(args, query);
  for (; query < args.queries; ++query) ScoreQueries<1>(args, query);
}

void WeightedSumAvx512(const WeightedSumArgs& args) {
  int32_t query = 0;
  for (; query + 4 <= args.queries; query += 4) SumQueries<4>(args, query);
  for (; query < args.queries; ++query) SumQueries<1>(args, query);
}

}  // namespace foredraft
