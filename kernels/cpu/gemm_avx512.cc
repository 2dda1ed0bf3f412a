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

// The BF16 bits of the 128 magnitudes of E4M3.
struct F8Table {
  alignas(64) uint16_t bits[128];
};

constexpr F8Table MakeF8Table() {
  F8Table table = {};
  for (int code = 1; code < 127; ++code) {
    int exponent = code >> 3;
    int mantissa = (code & 7) << 1;  // 4 bits
    if (exponent == 0) {             // subnormal: BF16 has the exponent to normalise it
      exponent = 1;
      for (; (mantissa & 16) == 0; mantissa <<= 1) --exponent;
    }
    table.bits[code] = static_cast<uint16_t>((exponent - 7 + 127) << 7 | (mantissa & 15) << 3);
  }
  table.bits[127] = 0x7fc0;  // NaN
  return table;
}

constexpr F8Table kF8Table = MakeF8Table();

// E4M3 to BF16, exactly, by table; the sign is moved over. (Scaling the exponent instead would make BF16
// subnormals of E4M3 subnormals, which VDPBF16PS takes for zero.)
struct F8Weights {
  static constexpr int kPairBytes = 32;
  __m512i table[4];

  F8Weights() {
    for (int i = 0; i < 4; ++i) table[i] = _mm512_load_si512(kF8Table.bits + 32 * i);
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

// Where the weights of a piece are: P panels, `stride` bytes apart.
struct PieceWeights {
  const unsigned char* first;
  int64_t stride;
};

// R rows x P panels over one piece. `chains` is used only where a k block has several pieces.
template <class Weights, int R, int P>
void Block(const GemmTileArgs& args, const Weights& weights, const PieceWeights& at, const Piece& piece,
           int row, int panel, Chains* chains) {
  const unsigned char* w[P];
  for (int j = 0; j < P; ++j) w[j] = at.first + j * at.stride;
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
void FewRows(const GemmTileArgs& args, const Weights& weights, const PieceWeights& at, const Piece& piece,
             int row, int count, int panel, Chains* chains) {
  if constexpr (Max > 1) {
    if (count < Max) return FewRows<Weights, P, Max - 1>(args, weights, at, piece, row, count, panel, chains);
  }
  Block<Weights, Max, P>(args, weights, at, piece, row, panel, chains);
}

template <class Weights, int P>
void AllRows(const GemmTileArgs& args, const Weights& weights, const PieceWeights& at, const Piece& piece,
             int panel, Chains* chains) {
  int row = 0;
  for (; args.rows - row > 5; row += 4) Block<Weights, 4, P>(args, weights, at, piece, row, panel, chains);
  FewRows<Weights, P, 5>(args, weights, at, piece, row, args.rows - row, panel, chains);
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

constexpr int32_t kPieceLen = 512;  // two panels: 32 KB of BF16
constexpr int kFewRows = 5;         // what one block takes with two panels

// P panels from `panel` on, for any number of rows.
template <class Weights, int P>
void PanelColumn(const GemmTileArgs& args, const Weights& weights, int panel, Chains* chains) {
  constexpr int32_t kAllOfK = 0x7ffffffc;
  constexpr int64_t kWidenedStride = kPieceLen / 2 * Bf16Weights::kPairBytes;
  ForEachPiece(args, args.rows <= kFewRows ? kAllOfK : kPieceLen, [&](const Piece& piece) {
    const PieceWeights at = {args.panels + panel * args.panel_bytes + piece.pair * Weights::kPairBytes,
                             args.panel_bytes};
    if constexpr (P > 2) {
      FewRows<Weights, P, 2>(args, weights, at, piece, 0, args.rows, panel, chains);
    } else if (Weights::kPairBytes == Bf16Weights::kPairBytes || args.rows <= kFewRows) {
      AllRows<Weights, P>(args, weights, at, piece, panel, chains);
    } else {  // FP8 for several blocks of rows: widen once
      alignas(64) unsigned char widened[P * kWidenedStride];
      for (int j = 0; j < P; ++j) {
        for (int pair = 0; pair < (piece.len + 1) / 2; ++pair) {
          _mm512_store_si512(widened + j * kWidenedStride + pair * Bf16Weights::kPairBytes,
                             weights.Load(at.first + j * at.stride + pair * Weights::kPairBytes));
        }
      }
      AllRows<Bf16Weights, P>(args, {}, {widened, kWidenedStride}, piece, panel, chains);
    }
  });
}

// How rows, panels and k are cut is a matter of registers and caches, never of bits: one or two rows go with
// four panels, for independent chains and memory streams; more rows by four or five with two panels, k in
// pieces whose weights are still in the cache for the next rows.
template <class Weights>
void Tile(const GemmTileArgs& args) {
  const Weights weights;
  Chains chains;
  int panel = 0;
  if (args.rows <= 2 && args.panel_count == kMaxTilePanels) {
    PanelColumn<Weights, kMaxTilePanels>(args, weights, panel, &chains);
    return;
  }
  for (; panel + 2 <= args.panel_count; panel += 2) PanelColumn<Weights, 2>(args, weights, panel, &chains);
  if (panel < args.panel_count) PanelColumn<Weights, 1>(args, weights, panel, &chains);
}

}  // namespace

void GemmBf16Avx512(const GemmTileArgs& args) { Tile<Bf16Weights>(args); }
void GemmF8Avx512(const GemmTileArgs& args) { Tile<F8Weights>(args); }

}  // namespace foredraft
