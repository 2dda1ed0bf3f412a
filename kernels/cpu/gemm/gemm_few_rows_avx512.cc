// One or two rows times BF16 weights with VDPBF16PS, in AMX's order of sums (amx_sums.h). TDPBF16PS sums the
// products of even k and of odd k separately; VDPBF16PS adds the products of two adjacent k. So the weights
// of two pairs of k are regrouped: the two even k in one register, the two odd k in another.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/gemm/amx_sums.h"

namespace foredraft {
namespace {

constexpr int64_t kPairBytes = kPanelWidth * 2 * 2;  // 32 outputs x a pair of k
constexpr int64_t kVectorBytes = 64;                 // of 16 outputs
constexpr int kPairsOfRun = kRunLen / 2;
constexpr int64_t kPrefetchDistance = 1024;  // bytes

// The order of a run's inputs: of four adjacent k the two even ones, then the two odd ones, each later one
// first, because VDPBF16PS begins with the second of a pair.
struct InputOrder {
  alignas(64) uint16_t k[kRunLen] = {};
};
constexpr InputOrder MakeInputOrder() {
  InputOrder order;
  for (int i = 0; i < kRunLen; i += 4) {
    order.k[i] = static_cast<uint16_t>(i + 2);
    order.k[i + 1] = static_cast<uint16_t>(i);
    order.k[i + 2] = static_cast<uint16_t>(i + 3);
    order.k[i + 3] = static_cast<uint16_t>(i + 1);
  }
  return order;
}
constexpr InputOrder kInputOrder = MakeInputOrder();

inline __m512 AddPairs(__m512 sum, __m512i weights, const uint16_t* x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights),
                          reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)));
}

// Adds the products of a run of R rows to the sums of even and of odd k, for outputs 0 to 15 and 16 to 31.
template <int R>
inline void AddProducts(const unsigned char* weights, const uint16_t (*x)[kRunLen], __m512 (&even)[R][2],
                        __m512 (&odd)[R][2]) {
  const __m512i low = _mm512_set1_epi32(0xffff), high = _mm512_set1_epi32(-0x10000);
  constexpr int kAndOr = 0xea;  // (a & b) | c
  FOREDRAFT_UNROLL
  for (int pair = 0; pair < kPairsOfRun; pair += 2) {
    FOREDRAFT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const unsigned char* const w = weights + pair * kPairBytes + half * kVectorBytes;
      _mm_prefetch(w + kPrefetchDistance, _MM_HINT_T0);
      _mm_prefetch(w + kPrefetchDistance + kPairBytes, _MM_HINT_T0);
      const __m512i earlier = _mm512_loadu_si512(w), later = _mm512_loadu_si512(w + kPairBytes);
      const __m512i evens = _mm512_ternarylogic_epi32(later, low, _mm512_slli_epi32(earlier, 16), kAndOr);
      const __m512i odds = _mm512_ternarylogic_epi32(earlier, high, _mm512_srli_epi32(later, 16), kAndOr);
      for (int row = 0; row < R; ++row) {
        even[row][half] = AddPairs(even[row][half], evens, x[row] + 2 * pair);
        odd[row][half] = AddPairs(odd[row][half], odds, x[row] + 2 * pair + 2);
      }
    }
  }
}

// Copies a run's pairs of `len` k, then zeros.
void CopyPairs(const unsigned char* weights, int32_t len, unsigned char* out) {
  for (int64_t at = 0; at < kPairsOfRun * kPairBytes; at += kVectorBytes) {
    const bool is_there = at < (len + 1) / 2 * kPairBytes;
    _mm512_store_si512(out + at, is_there ? _mm512_loadu_si512(weights + at) : _mm512_setzero_si512());
  }
}

template <int R>
void FewRows(const GemmTileArgs& args) {
  const __m512i order = _mm512_load_si512(kInputOrder.k);
  __m512 total[R][2];
  for (int32_t k = 0; k < args.k; k += kRunLen) {
    const unsigned char* weights = args.panel + k / 2 * kPairBytes;
    const int32_t len = args.k - k < kRunLen ? args.k - k : kRunLen;
    alignas(64) unsigned char last[kPairsOfRun * kPairBytes];
    if (len < kRunLen) {
      CopyPairs(weights, len, last);
      weights = last;
    }
    const __mmask32 mask = len < kRunLen ? (1u << len) - 1 : ~0u;
    alignas(64) uint16_t x[R][kRunLen];
    __m512 even[R][2], odd[R][2];
    for (int row = 0; row < R; ++row) {
      const __m512i inputs = _mm512_maskz_loadu_epi16(mask, args.x[row] + k);
      _mm512_store_si512(x[row], _mm512_permutexvar_epi16(order, inputs));
      for (int half = 0; half < 2; ++half) even[row][half] = odd[row][half] = _mm512_setzero_ps();
    }
    AddProducts<R>(weights, x, even, odd);
    for (int row = 0; row < R; ++row) {
      for (int half = 0; half < 2; ++half) {
        total[row][half] = AddRun(total[row][half], even[row][half], odd[row][half], k == 0);
      }
    }
  }
  for (int row = 0; row < R; ++row) {
    for (int half = 0; half < 2; ++half) {
      _mm512_storeu_ps(args.tile + row * kPanelWidth + half * 16, total[row][half]);
    }
  }
}

}  // namespace

void GemmBf16FewRowsAvx512(const GemmTileArgs& args) {
  if (args.rows == 1) return FewRows<1>(args);
  FewRows<2>(args);
}

}  // namespace foredraft
