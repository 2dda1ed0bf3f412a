#pragma once

// Vectors of int8_tile.h with AVX2, and with AVX-VNNI: eight outputs. All names are internal to the including
// file (kernels/cpu/device/isa.h says why).

#include <immintrin.h>

#include <cstdint>

namespace foredraft {
namespace {

// What the forms with and without AVX-VNNI share.
struct Lanes256 {
  static constexpr int kWidth = 8;
  // Eight registers of sums, four of bytes, one of x, and constants.
  static constexpr int kRows = 4;
  static constexpr int kVectors = 2;

  using Words = __m256i;
  using Floats = __m256;

  static void Fetch(const unsigned char* line) { _mm_prefetch(line, _MM_HINT_T0); }
  static Words Load(const unsigned char* words) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  }
  static Words BroadcastWord(const unsigned char* four) {
    int32_t word;
    __builtin_memcpy(&word, four, sizeof(word));
    return _mm256_set1_epi32(word);
  }

  static Words LowNibbles(Words words) { return _mm256_and_si256(words, _mm256_set1_epi8(0xf)); }
  static Words HighNibbles(Words words) { return LowNibbles(_mm256_srli_epi32(words, 4)); }
  // Twice the value of each E2M1 code, plus 12.
  static Words LookUp(Words nibbles) {
    const __m128i bytes = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), nibbles);
  }
  static Words Add(Words a, Words b) { return _mm256_add_epi32(a, b); }

  static Floats LoadFloats(const float* floats) { return _mm256_loadu_ps(floats); }
  static void StoreFloats(float* floats, Floats value) { _mm256_storeu_ps(floats, value); }
  static Floats MultiplyAdd(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats Scaled(Words integers, const unsigned char* scale) {
    float factor;
    __builtin_memcpy(&factor, scale, sizeof(factor));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(integers), _mm256_set1_ps(factor));
  }
  static Floats LoadBf16(const unsigned char* bits) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bits));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
  }
  // Signless E4M3: exponent and mantissa in a float's fields give the value times 2^-120, even if subnormal.
  static Floats LoadE4m3(const unsigned char* bits) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bits));
    const __m256i shifted = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 20);
    return _mm256_mul_ps(_mm256_castsi256_ps(shifted), _mm256_set1_ps(0x1p120f));
  }
};

#if defined(__AVXVNNI__)
struct LanesAvxVnni : Lanes256 {
  using Sums = __m256i;
  static Sums Start(const unsigned char* start) { return BroadcastWord(start + 4); }
  static Sums Dot(Sums sums, Words bytes, Words x) { return _mm256_dpbusd_avx_epi32(sums, bytes, x); }
  static Words Widen(Sums sums) { return sums; }
};
#endif

}  // namespace
}  // namespace foredraft
