// FP8 latents to BF16 with AVX-512: 32 codes at a time, as 16-bit integers.

#include <immintrin.h>

#include "kernels/cpu/isa.h"

namespace foredraft {
namespace {

constexpr int16_t kBias = 120 << 7;  // an E4M3 exponent's distance from BF16's

// The BF16 values m * 2^-9 of the codes m below 8, less kBias.
inline __m512i SubnormalCodes() {
  constexpr int16_t kValues[8] = {0x0000 - kBias, 0x3b00 - kBias, 0x3b80 - kBias, 0x3bc0 - kBias,
                                  0x3c00 - kBias, 0x3c20 - kBias, 0x3c40 - kBias, 0x3c60 - kBias};
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kValues)));
}

// The signs of codes, as those of BF16 values.
inline __m512i Signs(__m512i codes) { return _mm512_slli_epi16(_mm512_srli_epi16(codes, 7), 15); }

// bias: kBias and the exponent of the scale. A BF16 value times a power of two is an addition to its
// exponent, because no value here is subnormal.
inline __m512i Decode(__m512i codes, __m512i bias, __m512i subnormal_codes) {
  const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f));
  const __mmask32 subnormal = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
  const __m512i unbiased =
      _mm512_mask_permutexvar_epi16(_mm512_slli_epi16(magnitude, 4), subnormal, magnitude, subnormal_codes);
  const __mmask32 nonzero = _mm512_test_epi16_mask(magnitude, magnitude);
  return _mm512_or_si512(_mm512_maskz_add_epi16(nonzero, unbiased, bias), Signs(codes));
}

// For a scale that is NaN.
inline __m512i DecodeNan(__m512i codes, uint32_t scale) {
  return _mm512_or_si512(Signs(codes), _mm512_set1_epi16(static_cast<int16_t>(scale >> 16)));
}

}  // namespace

void DecodeLatentAvx512(const DecodeLatentArgs& args) {
  const __m512i subnormal_codes = SubnormalCodes();
  for (int32_t begin = 0; begin < args.len; begin += 128) {
    uint32_t scale;
    __builtin_memcpy(&scale, args.scales + begin / 128, sizeof(scale));
    const int32_t exponent = static_cast<int32_t>(scale >> 23 & 255u);
    const __m512i bias = _mm512_set1_epi16(static_cast<int16_t>(kBias + ((exponent - 127) << 7)));
    const int32_t end = begin + 128 < args.len ? begin + 128 : args.len;
    for (int32_t i = begin; i < end; i += 32) {
      const int32_t left = end - i;
      const __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
      const __m512i codes = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, args.codes + i));
      const __m512i values = exponent == 255 ? DecodeNan(codes, scale) : Decode(codes, bias, subnormal_codes);
      _mm512_mask_storeu_epi16(args.out + i, mask, values);
    }
  }
}

}  // namespace foredraft
