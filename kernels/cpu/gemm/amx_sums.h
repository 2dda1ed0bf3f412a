#pragma once

// AMX's sums in AVX-512, bit for bit, for the few rows for which VDPBF16PS is faster. TDPBF16PS keeps two
// sums, of the products of its 16 pairs' first elements and of their second elements, each added in order; it
// then adds the total of both to the result (Intel's manual of instructions). Files compiled for AVX-512
// include this. All names are internal to the including file (kernels/cpu/device/isa.h says why).

#include <immintrin.h>

#include <cstdint>

namespace foredraft {
namespace {

constexpr int32_t kRunLen = 32;  // k of an instruction: 16 pairs

// Additions keep subnormals; AMX, like VDPBF16PS, flushes them to a zero of their sign.
inline __m512 Flushed(__m512 sums) {
  constexpr int kSubnormal = 0x20;
  return _mm512_mask_and_ps(sums, _mm512_fpclass_ps_mask(sums, kSubnormal), sums, _mm512_set1_ps(-0.0f));
}

// Adds a run of 32 k, whose two sums are `first` and `second`.
inline __m512 AddRun(__m512 total, __m512 first, __m512 second, bool is_first_run) {
  const __m512 run = Flushed(_mm512_add_ps(first, second));
  // The first run is added to zero, which makes -0 a 0.
  if (is_first_run) return _mm512_add_ps(run, _mm512_setzero_ps());
  return Flushed(_mm512_add_ps(total, run));
}

}  // namespace
}  // namespace foredraft
