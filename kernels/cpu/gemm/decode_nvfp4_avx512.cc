// NVFP4 to BF16 with AVX-512: 16 outputs at a time.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/gemm/codes_avx512.h"

namespace foredraft {
namespace {

constexpr int kOctets = 2;                    // of a group (kernels/cpu/gemm/packed_weight.h)
constexpr int kOctetBytes = 4 * kPanelWidth;  // a word of codes for each output
constexpr int kGroupBytes = kOctets * kOctetBytes + kPanelWidth;
constexpr int kLanes = 16;
// About one piece ahead: memory loads it while this one is multiplied.
constexpr int64_t kPrefetchDistance = 16 * kGroupBytes;

}  // namespace

void DecodeNvfp4Avx512(const DecodeNvfp4Args& args) {
  // VPERMPS takes the low nibble of a word as its index.
  const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f,
                                       -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  const unsigned char* group = args.groups;
  uint32_t* pairs = args.pairs;
  for (int32_t i = 0; i < args.count; ++i, group += kGroupBytes, pairs += kOctets * 4 * kPanelWidth) {
    for (int at = 0; at < kGroupBytes; at += 64) {
      _mm_prefetch(group + kPrefetchDistance + at, _MM_HINT_T0);
    }
    FOREDRAFT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m512 scales = LoadE4m3Scales(group + kOctets * kOctetBytes + half * kLanes);
      FOREDRAFT_UNROLL
      for (int octet = 0; octet < kOctets; ++octet) {
        const __m512i words = _mm512_loadu_si512(group + octet * kOctetBytes + half * 4 * kLanes);
        FOREDRAFT_UNROLL
        for (int q = 0; q < 4; ++q) {
          const auto product = [&](int shift) {
            const __m512i codes = _mm512_srli_epi32(words, static_cast<unsigned>(shift));
            return _mm512_castps_si512(_mm512_mul_ps(_mm512_permutexvar_ps(codes, values), scales));
          };
          const __m512i even = product(4 * q), odd = product(16 + 4 * q);
          _mm512_store_si512(pairs + (octet * 4 + q) * kPanelWidth + half * kLanes,
                             _mm512_or_si512(_mm512_srli_epi32(even, 16), odd));
        }
      }
    }
  }
}

}  // namespace foredraft
