// Scores and weighted sums of attention with AVX-512.

#include <immintrin.h>

#include "kernels/cpu/isa.h"

namespace foredraft {
namespace {

inline __m512bh AsBf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

inline __mmask32 TailMask(int32_t count) { return static_cast<__mmask32>((uint64_t{1} << count) - 1); }

// sums[i % 2] += 32 products per step; the ragged end is loaded under a mask.
inline void AddDot(const uint16_t* a, const uint16_t* b, int32_t len, __m512 (&sums)[2]) {
  int32_t i = 0;
  for (; i + 64 <= len; i += 64) {
    sums[0] = _mm512_dpbf16_ps(sums[0], AsBf16(_mm512_loadu_si512(a + i)), AsBf16(_mm512_loadu_si512(b + i)));
    sums[1] = _mm512_dpbf16_ps(sums[1], AsBf16(_mm512_loadu_si512(a + i + 32)),
                               AsBf16(_mm512_loadu_si512(b + i + 32)));
  }
  for (int chain = 0; i < len; i += 32, ++chain) {
    const __mmask32 mask = len - i >= 32 ? ~__mmask32{0} : TailMask(len - i);
    sums[chain] = _mm512_dpbf16_ps(sums[chain], AsBf16(_mm512_maskz_loadu_epi16(mask, a + i)),
                                   AsBf16(_mm512_maskz_loadu_epi16(mask, b + i)));
  }
}

inline __m512 LoadBf16(const uint16_t* x, __mmask16 mask) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x)), 16));
}

// Columns [first, first + 16 N): the sums stay in registers over all rows. `tail` masks the last 16.
template <int N>
void SumColumns(const WeightedSumArgs& args, int32_t first, __mmask16 tail) {
  __m512 sums[N];
  for (int i = 0; i < N; ++i) sums[i] = _mm512_setzero_ps();
  for (int32_t t = 0; t < args.count; ++t) {
    const __m512 weight = _mm512_set1_ps(args.weights[t]);
    const uint16_t* row = args.rows[t] + first;
    for (int i = 0; i < N; ++i) {
      const __mmask16 mask = i == N - 1 ? tail : ~__mmask16{0};
      sums[i] = _mm512_fmadd_ps(weight, LoadBf16(row + 16 * i, mask), sums[i]);
    }
  }
  for (int i = 0; i < N; ++i) {
    const __mmask16 mask = i == N - 1 ? tail : ~__mmask16{0};
    _mm512_mask_storeu_ps(args.out + first + 16 * i, mask, sums[i]);
  }
}

}  // namespace

void AttentionScoresAvx512(const AttentionScoresArgs& args) {
  for (int32_t t = 0; t < args.count; ++t) {
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    AddDot(args.a, args.a_rows[t], args.a_len, sums);
    AddDot(args.b, args.b_rows[t], args.b_len, sums);
    args.scores[t] = _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
  }
}

void WeightedSumAvx512(const WeightedSumArgs& args) {
  const __mmask16 all = ~__mmask16{0};
  int32_t i = 0;
  for (; i + 128 <= args.len; i += 128) SumColumns<8>(args, i, all);
  for (; i + 32 <= args.len; i += 32) SumColumns<2>(args, i, all);
  for (; i < args.len; i += 16) {
    SumColumns<1>(args, i, args.len - i >= 16 ? all : static_cast<__mmask16>(TailMask(args.len - i)));
  }
}

}  // namespace foredraft
