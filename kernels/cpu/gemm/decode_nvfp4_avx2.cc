// NVFP4 to BF16 with AVX2: 8 outputs at a time.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

constexpr int kOctets = 2;                    // of a group (kernels/cpu/gemm/packed_weight.h)
constexpr int kOctetBytes = 4 * kPanelWidth;  // a word of codes for each output
constexpr int kLanes = 8;

// The values of the codes in the low nibbles of 8 words, times scales. The other bits are ignored. A lookup
// gives the magnitude; bit 3 of the code is the sign.
inline __m256i Products(__m256i words, __m256 scales) {
  const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256 value = _mm256_permutevar8x32_ps(magnitudes, words);
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(words, 28), _mm256_set1_epi32(INT32_MIN));
  return _mm256_or_si256(_mm256_castps_si256(_mm256_mul_ps(value, scales)), sign);
}

// E4M3 without its sign: exponent and mantissa in a float's fields give the value times 2^-120, even if
// subnormal.
inline __m256 Scales(const unsigned char* bits) {
  const __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bits)));
  return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(words, 20)), _mm256_set1_ps(0x1p120f));
}

}  // namespace

void DecodeNvfp4Avx2(const DecodeNvfp4Args& args) {
  const unsigned char* group = args.groups;
  uint32_t* pairs = args.pairs;
  for (int32_t i = 0; i < args.count; ++i) {
    const unsigned char* const scale_bits = group + kOctets * kOctetBytes;
    for (int first = 0; first < kPanelWidth; first += kLanes) {
      const __m256 scales = Scales(scale_bits + first);
      uint32_t* out = pairs + first;
      for (int octet = 0; octet < kOctets; ++octet) {
        const __m256i words =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group + octet * kOctetBytes + 4 * first));
        for (int q = 0; q < 4; ++q, out += kPanelWidth) {
          const __m256i even = Products(_mm256_srli_epi32(words, 4 * q), scales);
          const __m256i odd = Products(_mm256_srli_epi32(words, 16 + 4 * q), scales);
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                              _mm256_or_si256(_mm256_srli_epi32(even, 16), odd));
        }
      }
    }
    group = scale_bits + kPanelWidth;
    pairs += kOctets * 4 * kPanelWidth;
  }
}

}  // namespace foredraft
