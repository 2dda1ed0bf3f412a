// FP8 latents to BF16 with AVX-512, 64 codes at a time.

#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/gemm/codes_avx512.h"

namespace foredraft {
namespace {

// The cache has no NaN code: 0x7f is a number to kernels/kv_row.h.
constexpr uint16_t LatentCodeAsBf16(int magnitude) {
  return magnitude == 0x7f ? static_cast<uint16_t>((120 << 7) + (0x7f << 4)) : E4m3AsBf16(magnitude);
}
constexpr Bf16Bytes kLatentBytes = MakeBf16Bytes(LatentCodeAsBf16);

// `values` are in the codes' order.
inline void Decode(const Bf16Lookup& lookup, __m512i codes, __m512i (&values)[2]) {
  __m512i found[2];
  lookup.Find(codes, found);
  values[0] = _mm512_permutex2var_epi64(found[0], _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), found[1]);
  values[1] = _mm512_permutex2var_epi64(found[0], _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), found[1]);
}

// A BF16 value times a power of two is an addition to its exponent, because no value here is subnormal.
inline __m512i Scale(__m512i values, __m512i exponent) {
  const __mmask32 nonzero = _mm512_test_epi16_mask(values, _mm512_set1_epi16(0x7fff));
  return _mm512_mask_add_epi16(values, nonzero, values, exponent);
}

// Multiplies by a NaN scale.
inline __m512i WithSignsOf(__m512i values, uint32_t nan) {
  const __m512i signs = _mm512_and_si512(values, _mm512_set1_epi16(-0x8000));
  return _mm512_or_si512(signs, _mm512_set1_epi16(static_cast<int16_t>(nan >> 16)));
}

}  // namespace

void DecodeLatentAvx512(const DecodeLatentArgs& args) {
  const Bf16Lookup lookup(kLatentBytes);
  for (int32_t begin = 0; begin < args.len; begin += args.group) {
    uint32_t scale;
    __builtin_memcpy(&scale, args.scales + begin / args.group, sizeof(scale));
    const int32_t exponent = static_cast<int32_t>(scale >> 23 & 255u);
    const __m512i added = _mm512_set1_epi16(static_cast<int16_t>((exponent - 127) << 7));
    const int32_t end = begin + args.group < args.len ? begin + args.group : args.len;
    for (int32_t i = begin; i < end; i += 64) {
      const int32_t left = end - i;
      const uint64_t mask = left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
      __m512i values[2];
      Decode(lookup, _mm512_maskz_loadu_epi8(mask, args.codes + i), values);
      for (int half = 0; half < 2; ++half) {
        values[half] = exponent == 255 ? WithSignsOf(values[half], scale) : Scale(values[half], added);
        _mm512_mask_storeu_epi16(args.out + i + 32 * half, static_cast<__mmask32>(mask >> (32 * half)),
                                 values[half]);
      }
    }
  }
}

}  // namespace foredraft
