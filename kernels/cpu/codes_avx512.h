#ifndef FOREDRAFT_KERNELS_CPU_CODES_AVX512_H_
#define FOREDRAFT_KERNELS_CPU_CODES_AVX512_H_

// Codes of quantised weights as BF16, for the files that are compiled for AVX-512. All names are internal to
// the including file (kernels/cpu/isa.h says why).

#include <immintrin.h>

#include <cstdint>

namespace foredraft {
namespace {

// The E4M3 magnitudes whose bits do not simply move to their place in BF16: the 8 subnormals, which BF16 has
// the exponent to normalise, and NaN. (A BF16 subnormal would not do for a subnormal: BF16 products flush it
// to zero.)
constexpr uint8_t kSpecialE4m3[] = {0, 1, 2, 3, 4, 5, 6, 7, 0x7f};

// The BF16 bits of a magnitude.
constexpr uint16_t E4m3AsBf16(int magnitude) {
  if (magnitude == 0) return 0;
  if (magnitude == 0x7f) return 0x7fc0;
  if (magnitude >= 8) return static_cast<uint16_t>((120 << 7) + (magnitude << 4));
  int exponent = 1;
  int mantissa = magnitude << 1;  // 4 bits
  for (; (mantissa & 16) == 0; mantissa <<= 1) --exponent;
  return static_cast<uint16_t>((exponent - 7 + 127) << 7 | (mantissa & 15) << 3);
}

// The 16 values of 4-bit codes twice: VPERMW's index has 5 bits, of which the last is a bit of the next code.
inline __m512i LoadCodeTable(const uint16_t* table) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(table)));
}

// Pair 0..3 of an octet of k (kernels/cpu/packed_weight.h) for 16 outputs.
inline __m512i LookUpPair(__m512i octet, int pair, __m512i table) {
  return _mm512_permutexvar_epi16(_mm512_srli_epi16(octet, static_cast<unsigned>(4 * pair)), table);
}

// 16 scales in BF16.
inline __m512 LoadScales(const unsigned char* bits) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

}  // namespace
}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CPU_CODES_AVX512_H_
