// The tile kernel with VDPBF16PS: 16 outputs per register, a pair of k per instruction. Even and odd k pairs
// go to two chains per (row, panel), so that a single row has independent sums to overlap.

#include <immintrin.h>

#include "kernels/cpu/isa.h"

namespace foredraft {
namespace {

inline __m512bh AsBf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

inline __m512i LoadPair(const uint16_t* x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

struct Bf16Weights {
  static constexpr int kPairBytes = 64;
  __m512i Load(const unsigned char* w) const { return _mm512_loadu_si512(w); }
};

// E4M3 to BF16, exactly, by table: the 128 magnitudes in four registers, the sign moved over. (Scaling the
// exponent instead would make BF16 subnormals of E4M3 subnormals, which VDPBF16PS takes for zero.)
struct F8Weights {
  static constexpr int kPairBytes = 32;
  __m512i table[4];

  F8Weights() {
    alignas(64) uint16_t values[128];
    for (int code = 0; code < 128; ++code) {
      const float magnitude =
          code < 8 ? static_cast<float>(code) * 0x1p-9f
                   : static_cast<float>(8 + code % 8) * 0x1p-10f * static_cast<float>(1 << (code / 8));
      uint32_t bits;
      __builtin_memcpy(&bits, &magnitude, sizeof(bits));
      values[code] = code == 127 ? 0x7fc0 : static_cast<uint16_t>(bits >> 16);
    }
    for (int i = 0; i < 4; ++i) table[i] = _mm512_load_si512(values + 32 * i);
  }

  __m512i Load(const unsigned char* w) const {
    const __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
    const __m512i low = _mm512_permutex2var_epi16(table[0], codes, table[1]);   // codes 0..63
    const __m512i high = _mm512_permutex2var_epi16(table[2], codes, table[3]);  // codes 64..127
    const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(0x80)), 8);
    return _mm512_or_si512(_mm512_mask_blend_epi16(is_high, low, high), sign);
  }
};

// R rows x P panels, all of k.
template <class Weights, int R, int P>
void Block(const GemmTileArgs& args, const Weights& weights, int row, int panel) {
  const int32_t k_blocks = (args.k + args.block_k - 1) / args.block_k;
  const unsigned char* w[P];
  for (int j = 0; j < P; ++j) w[j] = args.panels + (panel + j) * args.panel_bytes;
  const uint16_t* const* x = args.x + row;
  __m512 total[R][P];
  for (int i = 0; i < R; ++i) {
    for (int j = 0; j < P; ++j) total[i][j] = _mm512_setzero_ps();
  }
  for (int32_t block = 0; block < k_blocks; ++block) {
    const int32_t first = block * args.block_k;
    const int32_t len = args.k - first < args.block_k ? args.k - first : args.block_k;
    __m512 even[R][P], odd[R][P];
    for (int i = 0; i < R; ++i) {
      for (int j = 0; j < P; ++j) even[i][j] = odd[i][j] = _mm512_setzero_ps();
    }
    const auto add_pair = [&](__m512(&sums)[R][P], int32_t pair, int32_t k) {
      for (int j = 0; j < P; ++j) {
        const __m512bh wj = AsBf16(weights.Load(w[j] + static_cast<int64_t>(pair) * Weights::kPairBytes));
        for (int i = 0; i < R; ++i) {
          sums[i][j] = _mm512_dpbf16_ps(sums[i][j], wj, AsBf16(LoadPair(x[i] + first + k)));
        }
      }
    };
    const int32_t pairs = len / 2;
    int32_t pair = 0;
    for (; pair + 2 <= pairs; pair += 2) {
      add_pair(even, pair, 2 * pair);
      add_pair(odd, pair + 1, 2 * pair + 2);
    }
    if (pair < pairs) add_pair(even, pair, 2 * pair);
    if (len % 2 != 0) {  // the last k alone: what follows x's row is not ours to read
      for (int j = 0; j < P; ++j) {
        const __m512bh wj = AsBf16(weights.Load(w[j] + static_cast<int64_t>(pairs) * Weights::kPairBytes));
        for (int i = 0; i < R; ++i) {
          const __m512i last = _mm512_set1_epi32(x[i][first + len - 1]);
          odd[i][j] = _mm512_dpbf16_ps(odd[i][j], wj, AsBf16(last));
        }
      }
    }
    for (int j = 0; j < P; ++j) {
      w[j] += static_cast<int64_t>((len + 1) / 2) * Weights::kPairBytes;
      for (int i = 0; i < R; ++i) {
        __m512 sum = _mm512_add_ps(even[i][j], odd[i][j]);
        if (args.scales != nullptr) {
          const float* scale =
              args.scales + (static_cast<int64_t>(panel + j) * k_blocks + block) * kPanelWidth;
          sum = _mm512_mul_ps(sum, _mm512_loadu_ps(scale));
        }
        total[i][j] = _mm512_add_ps(total[i][j], sum);
      }
    }
  }
  for (int i = 0; i < R; ++i) {
    for (int j = 0; j < P; ++j) {
      _mm512_storeu_ps(args.tile + ((row + i) * args.panel_count + panel + j) * kPanelWidth, total[i][j]);
    }
  }
}

template <class Weights, int P>
void Rows(const GemmTileArgs& args, const Weights& weights, int panel) {
  int row = 0;
  while (row < args.rows) {
    const int left = args.rows - row;
    if (left == 1) {
      Block<Weights, 1, P>(args, weights, row, panel);
      row += 1;
    } else if (left == 2) {
      Block<Weights, 2, P>(args, weights, row, panel);
      row += 2;
    } else if (left == 3) {
      Block<Weights, 3, P>(args, weights, row, panel);
      row += 3;
    } else if (left == 5) {
      Block<Weights, 5, P>(args, weights, row, panel);
      row += 5;
    } else if (left == 6) {
      Block<Weights, 6, P>(args, weights, row, panel);
      row += 6;
    } else {  // 8 in two halves, others in fours
      Block<Weights, 4, P>(args, weights, row, panel);
      row += 4;
    }
  }
}

// Few rows: as many panels as there are, for independent chains and memory streams. More rows: two panels, so
// that the sums stay in registers.
template <class Weights>
void Tile(const GemmTileArgs& args) {
  const Weights weights;
  int panel = 0;
  if (args.rows <= 2) {
    for (; panel + 4 <= args.panel_count; panel += 4) {
      if (args.rows == 1) Block<Weights, 1, 4>(args, weights, 0, panel);
      if (args.rows == 2) Block<Weights, 2, 4>(args, weights, 0, panel);
    }
  }
  for (; panel + 2 <= args.panel_count; panel += 2) Rows<Weights, 2>(args, weights, panel);
  if (panel < args.panel_count) Rows<Weights, 1>(args, weights, panel);
}

}  // namespace

void GemmBf16Avx512(const GemmTileArgs& args) { Tile<Bf16Weights>(args); }
void GemmF8Avx512(const GemmTileArgs& args) { Tile<F8Weights>(args); }

}  // namespace foredraft
