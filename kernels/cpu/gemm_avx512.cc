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

// A piece of k inside one k block. Pieces start at multiples of 4 from their block's start, so that a pair's
// chain does not depend on how k was cut.
struct Piece {
  int64_t pair;   // its first pair in a panel
  int32_t first;  // its first k
  int32_t len;
  int32_t block;
  bool starts_block;
  bool ends_block;
};

// The chains of sums between the pieces of one k block.
struct Chains {
  __m512 even[kMaxTileRows][2];
  __m512 odd[kMaxTileRows][2];
};

// R rows x P panels over one piece. `chains` is used only where a k block has several pieces.
template <class Weights, int R, int P>
void Block(const GemmTileArgs& args, const Weights& weights, const Piece& piece, int row, int panel,
           Chains* chains) {
  const unsigned char* w[P];
  for (int j = 0; j < P; ++j) {
    w[j] = args.panels + (panel + j) * args.panel_bytes + piece.pair * Weights::kPairBytes;
  }
  const uint16_t* x[R];
  for (int i = 0; i < R; ++i) x[i] = args.x[row + i] + piece.first;
  __m512 even[R][P], odd[R][P];
  for (int i = 0; i < R; ++i) {
    for (int j = 0; j < P; ++j) {
      if constexpr (P <= 2) {
        even[i][j] = piece.starts_block ? _mm512_setzero_ps() : chains->even[row + i][j];
        odd[i][j] = piece.starts_block ? _mm512_setzero_ps() : chains->odd[row + i][j];
      } else {
        even[i][j] = odd[i][j] = _mm512_setzero_ps();
      }
    }
  }
  const auto add_pair = [&](__m512(&sums)[R][P], int64_t pair) {
    for (int j = 0; j < P; ++j) {
      const __m512bh wj = AsBf16(weights.Load(w[j] + pair * Weights::kPairBytes));
      for (int i = 0; i < R; ++i)
        sums[i][j] = _mm512_dpbf16_ps(sums[i][j], wj, AsBf16(LoadPair(x[i] + 2 * pair)));
    }
  };
  const int64_t pairs = piece.len / 2;
  int64_t pair = 0;
  for (; pair + 2 <= pairs; pair += 2) {
    add_pair(even, pair);
    add_pair(odd, pair + 1);
  }
  if (pair < pairs) add_pair(even, pair);
  if (piece.len % 2 != 0) {  // the last k alone: what follows x's row is not ours to read
    for (int j = 0; j < P; ++j) {
      const __m512bh wj = AsBf16(weights.Load(w[j] + pairs * Weights::kPairBytes));
      for (int i = 0; i < R; ++i) {
        odd[i][j] = _mm512_dpbf16_ps(odd[i][j], wj, AsBf16(_mm512_set1_epi32(x[i][piece.len - 1])));
      }
    }
  }
  if (!piece.ends_block) {
    if constexpr (P <= 2) {
      for (int i = 0; i < R; ++i) {
        for (int j = 0; j < P; ++j)
          chains->even[row + i][j] = even[i][j], chains->odd[row + i][j] = odd[i][j];
      }
    }
    return;
  }
  const int32_t k_blocks = (args.k + args.block_k - 1) / args.block_k;
  for (int j = 0; j < P; ++j) {
    const float* scale =
        args.scales + (static_cast<int64_t>(panel + j) * k_blocks + piece.block) * kPanelWidth;
    for (int i = 0; i < R; ++i) {
      float* total = args.tile + ((row + i) * args.panel_count + panel + j) * kPanelWidth;
      __m512 sum = _mm512_add_ps(even[i][j], odd[i][j]);
      if (args.scales != nullptr) sum = _mm512_mul_ps(sum, _mm512_loadu_ps(scale));
      if (piece.block > 0) sum = _mm512_add_ps(_mm512_loadu_ps(total), sum);
      _mm512_storeu_ps(total, sum);
    }
  }
}

// `count` rows (at most Max) x P panels.
template <class Weights, int P, int Max>
void FewRows(const GemmTileArgs& args, const Weights& weights, const Piece& piece, int row, int count,
             int panel, Chains* chains) {
  if constexpr (Max > 1) {
    if (count < Max) return FewRows<Weights, P, Max - 1>(args, weights, piece, row, count, panel, chains);
  }
  Block<Weights, Max, P>(args, weights, piece, row, panel, chains);
}

template <class Weights, int P>
void AllRows(const GemmTileArgs& args, const Weights& weights, const Piece& piece, int panel,
             Chains* chains) {
  int row = 0;
  for (; args.rows - row > 5; row += 4) Block<Weights, 4, P>(args, weights, piece, row, panel, chains);
  FewRows<Weights, P, 5>(args, weights, piece, row, args.rows - row, panel, chains);
}

// Calls body(piece) over all of k.
template <class Body>
void ForEachPiece(const GemmTileArgs& args, int32_t max_len, const Body& body) {
  Piece piece{};
  for (int32_t block_first = 0; block_first < args.k; block_first += args.block_k, ++piece.block) {
    const int32_t block_len = args.k - block_first < args.block_k ? args.k - block_first : args.block_k;
    for (int32_t done = 0; done < block_len; done += piece.len) {
      piece.first = block_first + done;
      piece.len = block_len - done < max_len ? block_len - done : max_len;
      piece.starts_block = done == 0;
      piece.ends_block = done + piece.len == block_len;
      body(piece);
      piece.pair += (piece.len + 1) / 2;
    }
  }
}

// How rows, panels and k are cut is a matter of registers and caches, never of bits: one or two rows go with
// four panels, for independent chains and memory streams; more rows by four or five with two panels, k in
// pieces whose weights are still in the cache for the next rows.
template <class Weights>
void Tile(const GemmTileArgs& args) {
  constexpr int32_t kAllOfK = 0x7ffffffc;
  constexpr int32_t kPieceLen = 512;  // two panels: 32 KB of BF16
  const Weights weights;
  Chains chains;
  int panel = 0;
  if (args.rows <= 2 && args.panel_count >= 4) {
    ForEachPiece(args, kAllOfK, [&](const Piece& piece) {
      FewRows<Weights, 4, 2>(args, weights, piece, 0, args.rows, 0, &chains);
    });
    panel = 4;
  }
  const int32_t max_len = args.rows <= 5 ? kAllOfK : kPieceLen;
  for (; panel + 2 <= args.panel_count; panel += 2) {
    ForEachPiece(args, max_len,
                 [&](const Piece& piece) { AllRows<Weights, 2>(args, weights, piece, panel, &chains); });
  }
  if (panel < args.panel_count) {
    ForEachPiece(args, max_len,
                 [&](const Piece& piece) { AllRows<Weights, 1>(args, weights, piece, panel, &chains); });
  }
}

}  // namespace

void GemmBf16Avx512(const GemmTileArgs& args) { Tile<Bf16Weights>(args); }
void GemmF8Avx512(const GemmTileArgs& args) { Tile<F8Weights>(args); }

}  // namespace foredraft
