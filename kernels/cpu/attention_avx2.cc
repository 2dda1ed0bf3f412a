// Scores and weighted sums of attention with AVX2 and FMA.

#include <immintrin.h>

#include "kernels/cpu/isa.h"

namespace foredraft {
namespace {

inline __m256 LoadBf16(const uint16_t* x) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// The first `count` of 8 elements, the rest zero.
inline __m256 LoadBf16Tail(const uint16_t* x, int32_t count) {
  uint16_t padded[8] = {};
  for (int32_t i = 0; i < count; ++i) padded[i] = x[i];
  return LoadBf16(padded);
}

inline void AddDot(const uint16_t* a, const uint16_t* b, int32_t len, __m256 (&sums)[4]) {
  int32_t i = 0;
  for (; i + 32 <= len; i += 32) {
    for (int chain = 0; chain < 4; ++chain) {
      sums[chain] = _mm256_fmadd_ps(LoadBf16(a + i + 8 * chain), LoadBf16(b + i + 8 * chain), sums[chain]);
    }
  }
  for (int chain = 0; i < len; i += 8, ++chain) {
    const int32_t left = len - i;
    sums[chain] = left >= 8
                      ? _mm256_fmadd_ps(LoadBf16(a + i), LoadBf16(b + i), sums[chain])
                      : _mm256_fmadd_ps(LoadBf16Tail(a + i, left), LoadBf16Tail(b + i, left), sums[chain]);
  }
}

inline float Reduce(__m256 x) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// Columns [first, first + 8 N) of Q queries; the sums stay in registers over all rows.
template <int Q, int N>
void SumColumns(const WeightedSumArgs& args, int32_t query, int32_t first) {
  __m256 sums[Q][N];
  for (int q = 0; q < Q; ++q) {
    for (int i = 0; i < N; ++i) sums[q][i] = _mm256_setzero_ps();
  }
  const float* weights = args.weights + query * args.stride;
  for (int32_t t = 0; t < args.count; ++t) {
    __m256 row[N];
    for (int i = 0; i < N; ++i) row[i] = LoadBf16(args.rows[t] + first + 8 * i);
    for (int q = 0; q < Q; ++q) {
      const __m256 weight = _mm256_set1_ps(weights[q * args.stride + t]);
      for (int i = 0; i < N; ++i) sums[q][i] = _mm256_fmadd_ps(weight, row[i], sums[q][i]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    for (int i = 0; i < N; ++i) _mm256_storeu_ps(args.out[query + q] + first + 8 * i, sums[q][i]);
  }
}

// The remaining columns, fewer than 8.
void SumRest(const WeightedSumArgs& args, int32_t query, int32_t first) {
  for (int32_t i = first; i < args.len; ++i) {
    float sum = 0.0f;
    for (int32_t t = 0; t < args.count; ++t) {
      const float value = _mm_cvtss_f32(_mm_castsi128_ps(
          _mm_cvtsi32_si128(static_cast<int32_t>(static_cast<uint32_t>(args.rows[t][i]) << 16))));
      sum = __builtin_fmaf(args.weights[query * args.stride + t], value, sum);
    }
    args.out[query][i] = sum;
  }
}

template <int Q>
void SumQueries(const WeightedSumArgs& args, int32_t query) {
  int32_t i = 0;
  for (; i + 32 <= args.len; i += 32) SumColumns<Q, 4>(args, query, i);
  for (; i + 8 <= args.len; i += 8) SumColumns<Q, 1>(args, query, i);
  for (int q = 0; q < Q; ++q) SumRest(args, query + q, i);
}

}  // namespace

void AttentionScoresAvx2(const AttentionScoresArgs& args) {
  for (int32_t q = 0; q < args.queries; ++q) {
    for (int32_t t = 0; t < args.count; ++t) {
      __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
      AddDot(args.a[q], args.a_rows[t], args.a_len, sums);
      AddDot(args.b[q], args.b_rows[t], args.b_len, sums);
      args.scores[q * args.stride + t] =
          Reduce(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
    }
  }
}

void WeightedSumAvx2(const WeightedSumArgs& args) {
  int32_t query = 0;
  for (; query + 2 <= args.queries; query += 2) SumQueries<2>(args, query);
  if (query < args.queries) SumQueries<1>(args, query);
}

}  // namespace foredraft
