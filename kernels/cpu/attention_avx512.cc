// Scores and weighted sums of attention with AVX-512.

#include <immintrin.h>

#include "kernels/cpu/isa.h"

namespace foredraft {
namespace {

inline __m512bh AsBf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

inline __mmask32 TailMask(int32_t count) { return static_cast<__mmask32>((uint64_t{1} << count) - 1); }

// Horizontal sums of four registers: within each 128 bits (x0 + x2) + (x1 + x3), then across the 128-bit
// lanes.
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

// Scores of Q queries with rows [first, first + T).
template <int Q, int T>
void ScoreBlock(const AttentionScoresArgs& args, int32_t query, int32_t first) {
  __m512 sums[Q][T];
  for (int q = 0; q < Q; ++q) {
    for (int t = 0; t < T; ++t) sums[q][t] = _mm512_setzero_ps();
  }
  for (int part = 0; part < 2; ++part) {
    const uint16_t* const* queries = (part == 0 ? args.a : args.b) + query;
    const uint16_t* const* rows = (part == 0 ? args.a_rows : args.b_rows) + first;
    const int32_t len = part == 0 ? args.a_len : args.b_len;
    const auto add = [&](const auto& load) {
      __m512bh row[T];
      for (int t = 0; t < T; ++t) row[t] = AsBf16(load(rows[t]));
      for (int q = 0; q < Q; ++q) {
        const __m512bh x = AsBf16(load(queries[q]));
        for (int t = 0; t < T; ++t) sums[q][t] = _mm512_dpbf16_ps(sums[q][t], x, row[t]);
      }
    };
    int32_t i = 0;
    for (; i + 32 <= len; i += 32) add([i](const uint16_t* x) { return _mm512_loadu_si512(x + i); });
    if (i < len) {  // outside the loop: with a masked load in it, the compiler spills the sums
      const __mmask32 mask = TailMask(len - i);
      add([i, mask](const uint16_t* x) { return _mm512_maskz_loadu_epi16(mask, x + i); });
    }
  }
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

inline __m512 Widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Columns [first, first + 16 N) of Q queries; the sums stay in registers over all rows.
template <int Q, int N>
void SumColumns(const WeightedSumArgs& args, int32_t query, int32_t first) {
  __m512 sums[Q][N];
  for (int q = 0; q < Q; ++q) {
    for (int i = 0; i < N; ++i) sums[q][i] = _mm512_setzero_ps();
  }
  const float* weights = args.weights + query * args.stride;
  for (int32_t t = 0; t < args.count; ++t) {
    __m512 row[N];
    for (int i = 0; i < N; ++i) {
      row[i] = Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(args.rows[t] + first + 16 * i)));
    }
    for (int q = 0; q < Q; ++q) {
      const __m512 weight = _mm512_set1_ps(weights[q * args.stride + t]);
      for (int i = 0; i < N; ++i) sums[q][i] = _mm512_fmadd_ps(weight, row[i], sums[q][i]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    for (int i = 0; i < N; ++i) _mm512_storeu_ps(args.out[query + q] + first + 16 * i, sums[q][i]);
  }
}

// The remaining columns of one query, fewer than 16.
void SumRest(const WeightedSumArgs& args, int32_t query, int32_t first) {
  const __mmask16 mask = static_cast<__mmask16>(TailMask(args.len - first));
  __m512 sum = _mm512_setzero_ps();
  for (int32_t t = 0; t < args.count; ++t) {
    const __m512 row = Widen(_mm256_maskz_loadu_epi16(mask, args.rows[t] + first));
    sum = _mm512_fmadd_ps(_mm512_set1_ps(args.weights[query * args.stride + t]), row, sum);
  }
  _mm512_mask_storeu_ps(args.out[query] + first, mask, sum);
}

template <int Q>
void SumQueries(const WeightedSumArgs& args, int32_t query) {
  int32_t i = 0;
  for (; i + 64 <= args.len; i += 64) SumColumns<Q, 4>(args, query, i);
  for (; i + 16 <= args.len; i += 16) SumColumns<Q, 1>(args, query, i);
  if (i == args.len) return;
  for (int q = 0; q < Q; ++q) SumRest(args, query + q, i);
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
