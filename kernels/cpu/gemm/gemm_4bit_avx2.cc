// The tile kernel of 4-bit weights with AVX2 and FMA: half a stripe is two registers of 8 outputs. A group is
// decoded to FP32 once for all rows.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

constexpr int kHalf = 16;                      // outputs of half a stripe
constexpr int kOctetBytes = 4 * kStripeWidth;  // kernels/cpu/gemm/packed_weight.h
constexpr int kScaleBytes = 2 * kStripeWidth;
constexpr int32_t kMaxGroup = 128;

inline __m256 Bf16Broadcast(const uint16_t* x) {
  return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(static_cast<uint32_t>(*x) << 16)));
}

inline __m256 Bf16x8(const unsigned char* bits) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bits));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

// The 16 values: a lookup takes 8, and bit 3 of the code chooses between two lookups.
struct Table {
  __m256 low;
  __m256 high;

  explicit Table(const uint16_t* bits)
      : low(Bf16x8(reinterpret_cast<const unsigned char*>(bits))),
        high(Bf16x8(reinterpret_cast<const unsigned char*>(bits + 8))) {}

  // The values of the codes in the low nibbles of 8 words. The other bits are ignored.
  __m256 Lookup(__m256i words) const {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, words), _mm256_permutevar8x32_ps(high, words),
                            _mm256_castsi256_ps(_mm256_slli_epi32(words, 28)));
  }
};

// weights[k, 16 outputs] of half a stripe's group.
void Decode(const unsigned char* w, const Table& table, int32_t group, float* weights) {
  for (int32_t first = 0; first < group; first += 8, w += kOctetBytes, weights += 8 * kHalf) {
    for (int half = 0; half < 2; ++half) {
      __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32 * half));
      for (int nibble = 0; nibble < 8; ++nibble) {
        const int k = nibble % 4 * 2 + nibble / 4;
        _mm256_store_ps(weights + k * kHalf + 8 * half, table.Lookup(words));
        words = _mm256_srli_epi32(words, 4);
      }
    }
  }
}

// R rows, one group: two accumulators per 8 outputs, for even and odd k; their sum times the scale is added
// to the tile.
template <int R>
void Rows(const GemmTileArgs& args, int row, int part, int32_t first, const float* weights,
          const unsigned char* scales) {
  __m256 even[R][2], odd[R][2];
  for (int i = 0; i < R; ++i) {
    for (int half = 0; half < 2; ++half) even[i][half] = odd[i][half] = _mm256_setzero_ps();
  }
  const uint16_t* x[R];
  for (int i = 0; i < R; ++i) x[i] = args.x[row + i] + first;
  for (int32_t k = 0; k < args.block_k; k += 2, weights += 2 * kHalf) {
    for (int half = 0; half < 2; ++half) {
      const __m256 w_even = _mm256_load_ps(weights + 8 * half);
      const __m256 w_odd = _mm256_load_ps(weights + kHalf + 8 * half);
      for (int i = 0; i < R; ++i) {
        even[i][half] = _mm256_fmadd_ps(w_even, Bf16Broadcast(x[i] + k), even[i][half]);
        odd[i][half] = _mm256_fmadd_ps(w_odd, Bf16Broadcast(x[i] + k + 1), odd[i][half]);
      }
    }
  }
  for (int half = 0; half < 2; ++half) {
    const __m256 scale = Bf16x8(scales + 16 * half);
    for (int i = 0; i < R; ++i) {
      float* const out = args.tile + (row + i) * kStripeWidth + kHalf * part + 8 * half;
      const __m256 sum = _mm256_add_ps(even[i][half], odd[i][half]);
      _mm256_storeu_ps(out, _mm256_fmadd_ps(sum, scale, _mm256_loadu_ps(out)));
    }
  }
}

}  // namespace

void Gemm4BitAvx2(const GemmTileArgs& args) {
  const Table table(args.table);
  for (int i = 0; i < args.rows * kStripeWidth; ++i) args.tile[i] = 0.0f;
  alignas(32) float weights[kMaxGroup * kHalf];
  const unsigned char* w = args.stripe;
  const int64_t codes_bytes = int64_t{args.block_k} / 8 * kOctetBytes;
  for (int32_t first = 0; first < args.k; first += args.block_k, w += codes_bytes + kScaleBytes) {
    for (int part = 0; part < 2; ++part) {
      Decode(w + 4 * kHalf * part, table, args.block_k, weights);
      const unsigned char* const scales = w + codes_bytes + 2 * kHalf * part;
      int row = 0;
      for (; row + 3 <= args.rows; row += 3) Rows<3>(args, row, part, first, weights, scales);
      if (args.rows - row == 2) Rows<2>(args, row, part, first, weights, scales);
      if (args.rows - row == 1) Rows<1>(args, row, part, first, weights, scales);
    }
  }
}

}  // namespace foredraft
