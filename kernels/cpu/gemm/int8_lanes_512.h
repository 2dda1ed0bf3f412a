#pragma once

// Vectors of int8_tile.h with AVX-512 and VNNI: sixteen outputs. All names are internal to the including file
// (kernels/cpu/device/isa.h says why).

#include <immintrin.h>

#include <cstdint>

namespace foredraft {
namespace {

struct LanesAvx512 {
  static constexpr int kWidth = 16;
  static constexpr int kRows = 8;  // 16 accumulator registers
  static constexpr int kVectors = 2;

  using Words = __m512i;
  using Floats = __m512;
  using Sums = __m512i;

  static void Fetch(const unsigned char* line) { _mm_prefetch(line, _MM_HINT_T0); }
  static Words Load(const unsigned char* words) { return _mm512_loadu_si512(words); }
  static Words BroadcastWord(const unsigned char* four) {
    int32_t word;
    __builtin_memcpy(&word, four, sizeof(word));
    return _mm512_set1_epi32(word);
  }

  static Words LowNibbles(Words words) { return _mm512_and_si512(words, _mm512_set1_epi8(0xf)); }
  static Words HighNibbles(Words words) { return LowNibbles(_mm512_srli_epi32(words, 4)); }
  // Twice the value of each E2M1 code, plus 12.
  static Words LookUp(Words nibbles) {
    const __m128i bytes = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), nibbles);
  }

  static Sums Start(const unsigned char* start) { return BroadcastWord(start + 4); }
  static Sums Dot(Sums sums, Words bytes, Words x) { return _mm512_dpbusd_epi32(sums, bytes, x); }
  static Words Widen(Sums sums) { return sums; }
  static Words Add(Words a, Words b) { return _mm512_add_epi32(a, b); }

  static Floats LoadFloats(const float* floats) { return _mm512_loadu_ps(floats); }
  static void StoreFloats(float* floats, Floats value) { _mm512_storeu_ps(floats, value); }
  static Floats MultiplyAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats Scaled(Words integers, const unsigned char* scale) {
    float factor;
    __builtin_memcpy(&factor, scale, sizeof(factor));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(integers), _mm512_set1_ps(factor));
  }
  static Floats LoadBf16(const unsigned char* bits) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
  }
  // Signless E4M3: exponent and mantissa in a float's fields give the value times 2^-120, even if subnormal.
  static Floats LoadE4m3(const unsigned char* bits) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bits));
    const __m512i shifted = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 20);
    return _mm512_mul_ps(_mm512_castsi512_ps(shifted), _mm512_set1_ps(0x1p120f));
  }
};

}  // namespace
}  // namespace foredraft
