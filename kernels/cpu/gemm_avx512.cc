// The tile kernel with VDPBF16PS: 16 outputs per register, a pair of k per instruction. Each row and 16
// outputs have two accumulators, for even and odd k pairs, so that even a single row has independent chains
// to overlap.

#include "kernels/cpu/codes_avx512.h"
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
  static constexpr int kVectorBytes = 64;
  __m512i Load(const unsigned char* w) const { return _mm512_loadu_si512(w); }
};

// The values that are looked up, by the last 5 bits of their codes.
struct F8Table {
  alignas(64) uint16_t bits[32] = {};
};

constexpr F8Table MakeF8Table() {
  F8Table table;
  for (const int magnitude : kSpecialE4m3) table.bits[magnitude % 32] = SpecialE4m3AsBf16(magnitude);
  return table;
}

constexpr F8Table kF8Table = MakeF8Table();

// E4M3 to BF16, exactly: exponent and mantissa move 4 bits up, the exponent's bias grows by 120. Subnormals
// and NaN come from a table.
struct F8Weights {
  static constexpr int kVectorBytes = 32;
  __m512i table = _mm512_load_si512(kF8Table.bits);

  __m512i Load(const unsigned char* w) const {
    const __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f));
    const __m512i moved = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    // Below 8 or equal to 0x7f, in one comparison.
    const __mmask32 from_table = _mm512_cmpge_epu16_mask(_mm512_sub_epi16(magnitude, _mm512_set1_epi16(8)),
                                                         _mm512_set1_epi16(0x7f - 8));
    const __m512i value = _mm512_mask_permutexvar_epi16(moved, from_table, magnitude, table);
    // value | (codes << 8 & 0x8000)
    return _mm512_ternarylogic_epi32(value, _mm512_slli_epi16(codes, 8), _mm512_set1_epi16(-0x8000), 0xf8);
  }
};

// A piece of k inside one k block. Pieces start at multiples of 4 from the block's start, so that the
// accumulator of a pair does not depend on how k is cut.
struct Piece {
  int64_t pair;   // its first pair in the stripe
  int32_t first;  // its first k
  int32_t len;
  int32_t block;
  bool starts_block;
  bool ends_block;
};

// The accumulators between the pieces of one k block.
struct Chains {
  __m512 even[kMaxTileRows][2];
  __m512 odd[kMaxTileRows][2];
};

// Rows [row, row + count) of a tile go through a piece together, and prefetch weights meanwhile. A single row
// block prefetches a fixed distance ahead. With several, each prefetches its share of the next piece: if the
// first did it all, the memory bus would idle while the others compute.
struct RowBlock {
  int row;
  int count;
  const unsigned char* prefetch;
  int64_t prefetch_step;  // bytes per pair of this piece, at most 2 cache lines
};
constexpr int64_t kCacheLine = 64;
constexpr int64_t kPrefetchDistance = 2048;  // bytes; of a single row block

// R rows over one piece of k, whose weights start at `w`.
template <class Weights, int R>
void Block(const GemmTileArgs& args, const Weights& weights, const unsigned char* w, const Piece& piece,
           const RowBlock& rows, Chains& chains) {
  constexpr int64_t kPairBytes = 2 * Weights::kVectorBytes;
  const int row = rows.row;
  const uint16_t* x[R];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) x[i] = args.x[row + i] + piece.first;
  __m512 even[R][2], odd[R][2];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    FOREDRAFT_UNROLL
    for (int j = 0; j < 2; ++j) {
      even[i][j] = piece.starts_block ? _mm512_setzero_ps() : chains.even[row + i][j];
      odd[i][j] = piece.starts_block ? _mm512_setzero_ps() : chains.odd[row + i][j];
    }
  }
  const auto add = [&](__m512(&sums)[R][2], int64_t pair, const auto& x_pair) {
    FOREDRAFT_UNROLL
    for (int j = 0; j < 2; ++j) {
      const __m512bh wj = AsBf16(weights.Load(w + pair * kPairBytes + j * Weights::kVectorBytes));
      FOREDRAFT_UNROLL
      for (int i = 0; i < R; ++i) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], wj, AsBf16(x_pair(i)));
    }
  };
  const int64_t pairs = piece.len / 2;
  int64_t pair = 0;
  for (; pair + 2 <= pairs; pair += 2) {
    for (int64_t line = 0; line < 2 * rows.prefetch_step; line += kCacheLine) {
      _mm_prefetch(rows.prefetch + pair * rows.prefetch_step + line, _MM_HINT_T0);
    }
    add(even, pair, [&](int i) { return LoadPair(x[i] + 2 * pair); });
    add(odd, pair + 1, [&](int i) { return LoadPair(x[i] + 2 * pair + 2); });
  }
  if (pair < pairs) add(even, pair, [&](int i) { return LoadPair(x[i] + 2 * pair); });
  if (piece.len % 2 != 0) {  // the last k alone: reading a pair would run past the end of x's row
    add(odd, pairs, [&](int i) { return _mm512_set1_epi32(x[i][piece.len - 1]); });
  }
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    FOREDRAFT_UNROLL
    for (int j = 0; j < 2; ++j) {
      if (!piece.ends_block) {
        chains.even[row + i][j] = even[i][j];
        chains.odd[row + i][j] = odd[i][j];
        continue;
      }
      float* total = args.tile + (row + i) * kStripeWidth + 16 * j;
      __m512 sum = _mm512_add_ps(even[i][j], odd[i][j]);
      if (args.scales != nullptr) {
        sum = _mm512_mul_ps(sum, _mm512_loadu_ps(args.scales + piece.block * kStripeWidth + 16 * j));
      }
      if (piece.block > 0) sum = _mm512_add_ps(_mm512_loadu_ps(total), sum);
      _mm512_storeu_ps(total, sum);
    }
  }
}

constexpr int kBlockRows = 6;       // 24 registers of sums
constexpr int32_t kPieceLen = 512;  // 32 KB of BF16

// At most Max rows.
template <class Weights, int Max = kBlockRows>
void FewRows(const GemmTileArgs& args, const Weights& weights, const unsigned char* w, const Piece& piece,
             const RowBlock& rows, Chains& chains) {
  if constexpr (Max > 1) {
    if (rows.count < Max) return FewRows<Weights, Max - 1>(args, weights, w, piece, rows, chains);
  }
  Block<Weights, Max>(args, weights, w, piece, rows, chains);
}

// `stored`: the piece's weights in memory, of which a pair has `pair_bytes`; `w` may be a widened copy.
template <class Weights>
void AllRows(const GemmTileArgs& args, const Weights& weights, const unsigned char* w, const Piece& piece,
             const unsigned char* stored, int64_t pair_bytes, Chains& chains) {
  const int blocks = (args.rows + kBlockRows - 1) / kBlockRows;
  const int64_t piece_bytes = piece.len / 2 * pair_bytes;
  for (int block = 0; block < blocks; ++block) {
    const int row = args.rows * block / blocks;
    const unsigned char* const prefetch =
        blocks == 1 ? stored + kPrefetchDistance : stored + piece_bytes + piece_bytes * block / blocks;
    const RowBlock rows = {row, args.rows * (block + 1) / blocks - row, prefetch, pair_bytes / blocks};
    FewRows(args, weights, w, piece, rows, chains);
  }
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

// Row blocks and pieces of k are sized for registers and caches; they do not change bits. A single row block
// walks through all of k. Several take k in pieces, whose weights are still cached for the next row block.
template <class Weights>
void Tile(const GemmTileArgs& args) {
  constexpr int32_t kAllOfK = 0x7ffffffc;
  constexpr bool kWidens = Weights::kVectorBytes != Bf16Weights::kVectorBytes;
  const Weights weights;
  Chains chains;
  ForEachPiece(args, args.rows <= kBlockRows ? kAllOfK : kPieceLen, [&](const Piece& piece) {
    const unsigned char* w = args.stripe + piece.pair * 2 * Weights::kVectorBytes;
    if (!kWidens || args.rows <= kBlockRows) {
      AllRows(args, weights, w, piece, w, 2 * Weights::kVectorBytes, chains);
      return;
    }
    // FP8 weights used by several row blocks are widened once.
    alignas(64) unsigned char widened[kPieceLen * Bf16Weights::kVectorBytes];
    for (int vector = 0; vector < 2 * ((piece.len + 1) / 2); ++vector) {
      _mm512_store_si512(widened + vector * Bf16Weights::kVectorBytes,
                         weights.Load(w + vector * Weights::kVectorBytes));
    }
    AllRows(args, Bf16Weights{}, widened, piece, w, 2 * Weights::kVectorBytes, chains);
  });
}

}  // namespace

void GemmBf16Avx512(const GemmTileArgs& args) { Tile<Bf16Weights>(args); }
void GemmF8Avx512(const GemmTileArgs& args) { Tile<F8Weights>(args); }

}  // namespace foredraft
