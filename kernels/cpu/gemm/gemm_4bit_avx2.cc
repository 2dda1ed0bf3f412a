// The tile kernel of 4-bit weights with AVX2 and FMA. It decodes half a panel's group to FP32 once for
// several rows, but in registers for one.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/gemm/rows_avx2.h"

namespace foredraft {
namespace {

constexpr int kOctetBytes = 4 * kPanelWidth;  // kernels/cpu/gemm/packed_weight.h
constexpr int kScaleBytes = 2 * kPanelWidth;

constexpr int kGroupsAhead = 2;  // groups from the one multiplied to the one fetched

// Decoded weights and their sums lie in pairs, of an output's even and odd k. Eight outputs take two
// registers: outputs 0, 1, 4, 5 and outputs 2, 3, 6, 7.
constexpr int kRegisters = 2;
constexpr int kOctetOutputs = 8;

// The values of the 16 codes in BF16: their low and their high bytes, in both halves of a register.
struct Values {
  __m256i low;
  __m256i high;

  explicit Values(const uint16_t* bits) {
    alignas(16) unsigned char bytes[2][16];
    for (int code = 0; code < 16; ++code) {
      bytes[0][code] = static_cast<unsigned char>(bits[code]);
      bytes[1][code] = static_cast<unsigned char>(bits[code] >> 8);
    }
    low = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes[0])));
    high = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes[1])));
  }
};

inline __m256 LowerBf16(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
inline __m256 UpperBf16(__m256i words) {
  return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))));
}

// Calls use(k, registers) for k = 0, 2, 4, 6 of an octet, with the pairs of k and k + 1 of 8 outputs. Bytes 0
// to 3 of an output's word have the codes of k = 0, 4, 1 and 5 in their low nibbles, of k = 2, 6, 3 and 7 in
// their high ones.
template <class Use>
inline void ForOctet(const unsigned char* w, const Values& values, const Use& use) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
  const __m256i nibble = _mm256_set1_epi8(0xf);
  __m256i bf16s[2][kRegisters];
  FOREDRAFT_UNROLL
  for (int i = 0; i < 2; ++i) {
    const __m256i codes = _mm256_and_si256(i == 0 ? words : _mm256_srli_epi32(words, 4), nibble);
    const __m256i low = _mm256_shuffle_epi8(values.low, codes);
    const __m256i high = _mm256_shuffle_epi8(values.high, codes);
    bf16s[i][0] = _mm256_unpacklo_epi8(low, high);
    bf16s[i][1] = _mm256_unpackhi_epi8(low, high);
  }
  use(0, LowerBf16(bf16s[0][0]), LowerBf16(bf16s[0][1]));
  use(2, LowerBf16(bf16s[1][0]), LowerBf16(bf16s[1][1]));
  use(4, UpperBf16(bf16s[0][0]), UpperBf16(bf16s[0][1]));
  use(6, UpperBf16(bf16s[1][0]), UpperBf16(bf16s[1][1]));
}

inline __m256 BroadcastPair(const float* x) {
  int64_t bits;
  __builtin_memcpy(&bits, x, sizeof(bits));
  return _mm256_castsi256_ps(_mm256_set1_epi64x(bits));
}

// Sums of R rows x Width outputs.
template <int R, int Width>
struct PairSums {
  static constexpr int kVectors = Width / kOctetOutputs * kRegisters;

  __m256 pairs[R][kVectors];

  void Clear() {
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      for (int v = 0; v < kVectors; ++v) pairs[i][v] = _mm256_setzero_ps();
    }
  }
};

// Decodes half a panel's group to [pairs of k][16][2].
void Decode(const unsigned char* w, const Values& values, int32_t group, float* weights) {
  for (int32_t first = 0; first < group; first += 8, w += kOctetBytes, weights += 8 * kHalf) {
    for (int output = 0; output < kHalf; output += kOctetOutputs) {
      ForOctet(w + 4 * output, values, [&](int k, __m256 first_half, __m256 second_half) {
        float* const pairs = weights + k * kHalf + 2 * output;
        _mm256_store_ps(pairs, first_half);
        _mm256_store_ps(pairs + 8, second_half);
      });
    }
  }
}

// Adds the products of R rows and a decoded group.
template <int R>
inline void MultiplyPairs(const float* weights, const float* x, int32_t group, PairSums<R, kHalf>& sums) {
  for (int32_t k = 0; k < group; k += 2, weights += 2 * kHalf) {
    __m256 values[R];
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) values[i] = BroadcastPair(x + i * kPieceLen + k);
    FOREDRAFT_UNROLL
    for (int v = 0; v < sums.kVectors; ++v) {
      const __m256 weight = _mm256_load_ps(weights + 8 * v);
      FOREDRAFT_UNROLL
      for (int i = 0; i < R; ++i) sums.pairs[i][v] = _mm256_fmadd_ps(weight, values[i], sums.pairs[i][v]);
    }
  }
}

// Adds the products of one row and a group of a whole panel.
inline void MultiplyRow(const unsigned char* w, const Values& values, const float* x, int32_t group,
                        PairSums<1, kPanelWidth>& sums) {
  for (int32_t first = 0; first < group; first += 8, w += kOctetBytes, x += 8) {
    FOREDRAFT_UNROLL
    for (int v = 0; v < sums.kVectors; v += kRegisters) {
      if (16 * v % kLine == 0) _mm_prefetch(w + 16 * v + kFetchDistance, _MM_HINT_T0);
      ForOctet(w + 16 * v, values, [&](int k, __m256 first_half, __m256 second_half) {
        const __m256 value = BroadcastPair(x + k);
        sums.pairs[0][v] = _mm256_fmadd_ps(first_half, value, sums.pairs[0][v]);
        sums.pairs[0][v + 1] = _mm256_fmadd_ps(second_half, value, sums.pairs[0][v + 1]);
      });
    }
  }
}

// Adds a group's sums, times its scales, to the tile. A horizontal add of two registers gives 8 outputs in
// order.
template <int R, int Width>
inline void AddToTile(const PairSums<R, Width>& sums, const unsigned char* scales, float* tile) {
  FOREDRAFT_UNROLL
  for (int v = 0; v < sums.kVectors; v += kRegisters) {
    const __m256 scale = WidenEight(scales + 8 * v);
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      float* const out = tile + i * kPanelWidth + 4 * v;
      const __m256 sum = _mm256_hadd_ps(sums.pairs[i][v], sums.pairs[i][v + 1]);
      _mm256_storeu_ps(out, _mm256_fmadd_ps(sum, scale, _mm256_loadu_ps(out)));
    }
  }
}

// One row uses each decoded weight once, so it stays in registers.
void OneRow(const GemmTileArgs& args, const Values& values, int64_t codes_bytes) {
  WideRows rows;
  const unsigned char* w = args.panel;
  for (int32_t first = 0; first < args.k; first += args.block_k, w += codes_bytes + kScaleBytes) {
    WidenRows(args, first, args.block_k, rows);
    PairSums<1, kPanelWidth> sums;
    sums.Clear();
    MultiplyRow(w, values, rows.x[0], args.block_k, sums);
    AddToTile(sums, w + codes_bytes, args.tile);
  }
}

void ManyRows(const GemmTileArgs& args, const Values& values, int64_t codes_bytes) {
  WideRows rows;
  alignas(32) float weights[kPieceLen * kHalf];
  const unsigned char* w = args.panel;
  const int64_t group_bytes = codes_bytes + kScaleBytes;
  for (int32_t first = 0; first < args.k; first += args.block_k, w += group_bytes) {
    WidenRows(args, first, args.block_k, rows);
    Prefetch ahead(w + kGroupsAhead * group_bytes, group_bytes, 2 * RowBlocks(args.rows));
    for (int32_t output = 0; output < kPanelWidth; output += kHalf) {
      Decode(w + 4 * output, values, args.block_k, weights);
      ForRowBlocks<kHalf>(args.rows, [&](int32_t row, auto count) {
        ahead.Step();
        PairSums<count.value, kHalf> sums;
        sums.Clear();
        MultiplyPairs(weights, rows.x[row], args.block_k, sums);
        AddToTile(sums, w + codes_bytes + 2 * output, args.tile + row * kPanelWidth + output);
      });
    }
  }
}

}  // namespace

void Gemm4BitAvx2(const GemmTileArgs& args) {
  const Values values(args.table);
  const int64_t codes_bytes = int64_t{args.block_k} / 8 * kOctetBytes;
  for (int i = 0; i < args.rows * kPanelWidth; ++i) args.tile[i] = 0.0f;
  if (args.rows == 1) {
    OneRow(args, values, codes_bytes);
  } else {
    ManyRows(args, values, codes_bytes);
  }
}

}  // namespace foredraft
