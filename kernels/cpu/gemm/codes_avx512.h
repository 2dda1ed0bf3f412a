#pragma once

// Codes of quantised weights as BF16, for the files that are compiled for AVX-512. All names are internal to
// the including file (kernels/cpu/device/isa.h says why).

#include <immintrin.h>

#include <cstdint>

namespace foredraft {
namespace {

// The BF16 bits of an E4M3 magnitude. A subnormal one is normal in BF16.
constexpr uint16_t E4m3AsBf16(int magnitude) {
  if (magnitude == 0) return 0;
  if (magnitude == 0x7f) return 0x7fc0;
  if (magnitude >= 8) return static_cast<uint16_t>((120 << 7) + (magnitude << 4));
  int exponent = 1;
  int mantissa = magnitude << 1;  // 4 bits
  for (; (mantissa & 16) == 0; mantissa <<= 1) --exponent;
  return static_cast<uint16_t>((exponent - 7 + 127) << 7 | (mantissa & 15) << 3);
}

// BF16 values, indexed by 7-bit codes.
struct Bf16Bytes {
  alignas(64) uint8_t high[128] = {};
  alignas(64) uint8_t low[128] = {};
};
template <class Bits>
constexpr Bf16Bytes MakeBf16Bytes(const Bits& bits_of) {
  Bf16Bytes bytes;
  for (int code = 0; code < 128; ++code) {
    const uint16_t bits = bits_of(code);
    bytes.high[code] = static_cast<uint8_t>(bits >> 8);
    bytes.low[code] = static_cast<uint8_t>(bits & 0xff);
  }
  return bytes;
}

// Looks up 64 values; a code's top bit is its sign. High and low bytes are looked up separately and
// interleaved within 128-bit lanes, so values[0] has codes 0-7, 16-23, 32-39, 48-55, and values[1] the
// others.
class Bf16Lookup {
 public:
  explicit Bf16Lookup(const Bf16Bytes& bytes) {
    for (int half = 0; half < 2; ++half) {
      high_[half] = _mm512_load_si512(bytes.high + 64 * half);
      low_[half] = _mm512_load_si512(bytes.low + 64 * half);
    }
  }

  void Find(__m512i codes, __m512i (&values)[2]) const {
    const __m512i low = _mm512_permutex2var_epi8(low_[0], codes, low_[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(high_[0], codes, high_[1]);
    // magnitude | (codes & 0x80)
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(-0x80), 0xf8);
    values[0] = _mm512_unpacklo_epi8(low, high);
    values[1] = _mm512_unpackhi_epi8(low, high);
  }

 private:
  __m512i high_[2];
  __m512i low_[2];
};

// The 16 values of 4-bit codes, twice: VPERMW's index has 5 bits, whose top one belongs to the next code.
inline __m512i LoadCodeTable(const uint16_t* table) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(table)));
}

// Pair 0..3 of an octet of k (kernels/cpu/gemm/packed_weight.h) for 16 outputs.
inline __m512i LookUpPair(__m512i octet, int pair, __m512i table) {
  return _mm512_permutexvar_epi16(_mm512_srli_epi16(octet, static_cast<unsigned>(4 * pair)), table);
}

// 16 scales in BF16.
inline __m512 LoadScales(const unsigned char* bits) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

// 16 E4M3 scales without their sign: exponent and mantissa in a float's fields give the value times 2^-120,
// even if subnormal.
inline __m512 LoadE4m3Scales(const unsigned char* bits) {
  const __m512i words = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits)));
  return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(words, 20)), _mm512_set1_ps(0x1p120f));
}

}  // namespace
}  // namespace foredraft
