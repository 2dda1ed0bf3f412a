#pragma once

// The order of 32 columns after unpacking, which interleaves lanes of 128 bits: the first register has the
// columns 0-3, 8-11, 16-19 and 24-27, the second one the others. All names are internal to the including file
// (kernels/cpu/device/isa.h says why).

#include <immintrin.h>

namespace foredraft {
namespace {

// Reorders `sums` from unpacked to column order.
inline void ToColumns(__m512 (&sums)[2]) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  const __m512 ordered = _mm512_permutex2var_ps(sums[0], first, sums[1]);
  sums[1] = _mm512_permutex2var_ps(sums[0], second, sums[1]);
  sums[0] = ordered;
}

}  // namespace
}  // namespace foredraft
