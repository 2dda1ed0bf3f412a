#pragma once

// What the files of attention with AVX-512 share. All names are internal to the including file
// (kernels/cpu/device/isa.h says why).

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

constexpr int kLanes = 16;
constexpr int kWordsOfVector = 2 * kLanes;
constexpr int kPairs = kTileLen / 2;

inline __m512bh AsBf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }
inline __m512i LoadPairs(const Bf16Pair* x) { return _mm512_loadu_si512(x); }
inline __m512i BroadcastPair(const Bf16Pair* x) { return _mm512_set1_epi32(static_cast<int32_t>(*x)); }
inline __m512 Dot(__m512 sum, __m512i x, __m512i y) { return _mm512_dpbf16_ps(sum, AsBf16(x), AsBf16(y)); }

inline void PrefetchLine(RowPrefetch& next) {
  if (next.row == next.count) return;
  _mm_prefetch(static_cast<const char*>(next.rows[next.row]) + next.offset, _MM_HINT_T1);
  next.offset += 64;
  if (next.offset < next.bytes) return;
  next.offset = 0;
  ++next.row;
}

}  // namespace
}  // namespace foredraft
