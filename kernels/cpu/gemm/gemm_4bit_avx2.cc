// The tile kernel of 4-bit weights with AVX2 and FMA: a group of half a stripe is decoded to FP32 once for
// all rows; for one row as it is multiplied.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/gemm/rows_avx2.h"

namespace foredraft {
namespace {

constexpr int kOctetBytes = 4 * kStripeWidth;  // kernels/cpu/gemm/packed_weight.h
constexpr int kScaleBytes = 2 * kStripeWidth;

// Decoded weights are 2^25 times their value: twice it, a whole number, in the high byte of an integer. A
// group's sum gives the factor back. Both are exact.
constexpr float kUnit = 0x1p-25f;

constexpr int kGroupsAhead = 2;  // the group that is fetched while one is multiplied

// Twice the values of the codes, as bytes of both halves of a register.
__m256i DoubledValues(const uint16_t* bf16_values) {
  alignas(16) int8_t doubled[16];
  for (int code = 0; code < 16; ++code) {
    const uint32_t bits = static_cast<uint32_t>(bf16_values[code]) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof(value));
    doubled[code] = static_cast<int8_t>(2 * value);
  }
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(doubled)));
}

// Byte `byte` of 8 words, in the words' high bytes.
template <int byte>
inline __m256 ByteOf(__m256i words) {
  if (byte == 0) return _mm256_cvtepi32_ps(_mm256_slli_epi32(words, 24));
  const __m256i shifted = byte < 3 ? _mm256_slli_epi32(words, 24 - 8 * byte) : words;
  return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(static_cast<int32_t>(0xff000000u))));
}

// Calls use(k, weights) for each k of an octet, in order, with the weights of 8 outputs.
template <class Use>
inline void ForOctet(const unsigned char* w, __m256i values, const Use& use) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
  const __m256i nibble = _mm256_set1_epi8(0xf);
  const __m256i low = _mm256_shuffle_epi8(values, _mm256_and_si256(words, nibble));
  const __m256i high = _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi32(words, 4), nibble));
  use(0, ByteOf<0>(low));
  use(1, ByteOf<2>(low));
  use(2, ByteOf<0>(high));
  use(3, ByteOf<2>(high));
  use(4, ByteOf<1>(low));
  use(5, ByteOf<3>(low));
  use(6, ByteOf<1>(high));
  use(7, ByteOf<3>(high));
}

// A group of half a stripe, [k][16].
void Decode(const unsigned char* w, __m256i values, int32_t group, float* weights) {
  for (int32_t first = 0; first < group; first += 8, w += kOctetBytes, weights += 8 * kHalf) {
    for (int output = 0; output < kHalf; output += 8) {
      ForOctet(w + 4 * output, values,
               [&](int k, __m256 decoded) { _mm256_store_ps(weights + k * kHalf + output, decoded); });
    }
  }
}

// Adds the products of one row and a group of a whole stripe.
void MultiplyRow(const unsigned char* w, __m256i values, const float* x, int32_t group,
                 RowSums<1, kStripeWidth>& sums) {
  for (int32_t first = 0; first < group; first += 8, w += kOctetBytes, x += 8) {
    FOREDRAFT_UNROLL
    for (int v = 0; v < kStripeWidth / 8; ++v) {
      if (32 * v % kLine == 0) _mm_prefetch(w + 32 * v + kFetchDistance, _MM_HINT_T0);
      ForOctet(w + 32 * v, values, [&](int k, __m256 decoded) {
        __m256& sum = k % 2 == 0 ? sums.even[0][v] : sums.odd[0][v];
        sum = _mm256_fmadd_ps(decoded, _mm256_broadcast_ss(x + k), sum);
      });
    }
  }
}

// Adds a group's sums, times its scales, to the tile.
template <int R, int Width>
inline void AddToTile(const RowSums<R, Width>& sums, const unsigned char* scales, float* tile) {
  FOREDRAFT_UNROLL
  for (int v = 0; v < Width / 8; ++v) {
    const __m256 scale = WidenEight(scales + 16 * v);
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      float* const out = tile + i * kStripeWidth + 8 * v;
      const __m256 sum = _mm256_mul_ps(_mm256_add_ps(sums.even[i][v], sums.odd[i][v]), _mm256_set1_ps(kUnit));
      _mm256_storeu_ps(out, _mm256_fmadd_ps(sum, scale, _mm256_loadu_ps(out)));
    }
  }
}

// One row: what is decoded is used once, so it stays in registers.
void OneRow(const GemmTileArgs& args, __m256i values, int64_t codes_bytes) {
  WideRows rows;
  const unsigned char* w = args.stripe;
  for (int32_t first = 0; first < args.k; first += args.block_k, w += codes_bytes + kScaleBytes) {
    WidenRows(args, first, args.block_k, rows);
    RowSums<1, kStripeWidth> sums;
    sums.Clear();
    MultiplyRow(w, values, rows.x[0], args.block_k, sums);
    AddToTile(sums, w + codes_bytes, args.tile);
  }
}

void ManyRows(const GemmTileArgs& args, __m256i values, int64_t codes_bytes) {
  WideRows rows;
  alignas(32) float weights[kPieceLen * kHalf];
  const unsigned char* w = args.stripe;
  const int64_t group_bytes = codes_bytes + kScaleBytes;
  for (int32_t first = 0; first < args.k; first += args.block_k, w += group_bytes) {
    WidenRows(args, first, args.block_k, rows);
    Prefetch ahead(w + kGroupsAhead * group_bytes, group_bytes, 2 * RowBlocks(args.rows));
    for (int32_t output = 0; output < kStripeWidth; output += kHalf) {
      Decode(w + 4 * output, values, args.block_k, weights);
      ForRowBlocks<kHalf>(args.rows, [&](int32_t row, auto count) {
        ahead.Step();
        RowSums<count.value, kHalf> sums;
        sums.Clear();
        MultiplyRows<WideWeights<kHalf>>(weights, rows.x[row], args.block_k, sums);
        AddToTile(sums, w + codes_bytes + 2 * output, args.tile + row * kStripeWidth + output);
      });
    }
  }
}

}  // namespace

void Gemm4BitAvx2(const GemmTileArgs& args) {
  const __m256i values = DoubledValues(args.table);
  const int64_t codes_bytes = int64_t{args.block_k} / 8 * kOctetBytes;
  for (int i = 0; i < args.rows * kStripeWidth; ++i) args.tile[i] = 0.0f;
  if (args.rows == 1) {
    OneRow(args, values, codes_bytes);
  } else {
    ManyRows(args, values, codes_bytes);
  }
}

}  // namespace foredraft
