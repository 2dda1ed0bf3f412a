// The tile kernels with VDPBF16PS: 16 outputs per register, a pair of k per instruction. Each row and 16
// outputs have one accumulator, so that up to 12 rows share a pass over the weights. (For a single row, two
// chains of sums still outpace memory.)

#include "kernels/cpu/common/unpacked_avx512.h"
#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/gemm/codes_avx512.h"

namespace foredraft {
namespace {

inline __m512bh AsBf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

inline __m512i LoadPair(const uint16_t* x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

constexpr Bf16Bytes kE4m3Bytes = MakeBf16Bytes(E4m3AsBf16);

// A kind of weights: Load widens a pair of k of the panel's 32 outputs to two registers of 16 outputs, Order
// puts two registers of their sums into the outputs' order.
struct Bf16Weights {
  static constexpr int64_t kPairBytes = 128;

  void Load(const unsigned char* pair, __m512i (&values)[2]) const {
    values[0] = _mm512_loadu_si512(pair);
    values[1] = _mm512_loadu_si512(pair + 64);
  }
  static void Order(__m512 (&)[2]) {}
};

// Bf16Lookup leaves the outputs in the order of unpacking.
struct F8Weights {
  static constexpr int64_t kPairBytes = 64;
  Bf16Lookup lookup{kE4m3Bytes};

  void Load(const unsigned char* pair, __m512i (&values)[2]) const {
    lookup.Find(_mm512_loadu_si512(pair), values);
  }
  static void Order(__m512 (&sums)[2]) { ToColumns(sums); }
};

// A piece of k inside one k block. Pieces start at even k.
struct Piece {
  int64_t pair;   // its first pair in the panel
  int32_t first;  // its first k
  int32_t len;
  int32_t block;
  bool starts_block;
  bool ends_block;
};

// The accumulators between the pieces of one k block.
struct Chains {
  __m512 sums[kMaxTileRows][2];
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
// How far a single row block fetches ahead, in bytes: at 30 GB/s a core, a read that takes 150 ns must be
// 4.5 KB ahead.
constexpr int64_t kPrefetchDistance = 8192;

// Adds the sums of the k block that `piece` ends, times its scales, to a row of the tile.
template <class Weights>
inline void AddToTile(const GemmTileArgs& args, const Piece& piece, int row, __m512 (&sums)[2]) {
  Weights::Order(sums);
  FOREDRAFT_UNROLL
  for (int j = 0; j < 2; ++j) {
    float* const total = args.tile + row * kPanelWidth + 16 * j;
    if (args.scales != nullptr) {
      sums[j] = _mm512_mul_ps(sums[j], _mm512_loadu_ps(args.scales + piece.block * kPanelWidth + 16 * j));
    }
    if (piece.block > 0) sums[j] = _mm512_add_ps(_mm512_loadu_ps(total), sums[j]);
    _mm512_storeu_ps(total, sums[j]);
  }
}

// Multiplies R rows by the piece of k at `w`.
template <class Weights, int R>
[[gnu::noinline]] void Block(const GemmTileArgs& args, const Weights& weights, const unsigned char* w,
                             const Piece& piece, const RowBlock& rows, Chains& chains) {
  const int row = rows.row;
  const uint16_t* x[R];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) x[i] = args.x[row + i] + piece.first;
  __m512 sums[R][2];
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    FOREDRAFT_UNROLL
    for (int j = 0; j < 2; ++j)
      sums[i][j] = piece.starts_block ? _mm512_setzero_ps() : chains.sums[row + i][j];
  }
  const auto add = [&](int i, const __m512i(&values)[2], __m512i x_pair) {
    FOREDRAFT_UNROLL
    for (int j = 0; j < 2; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], AsBf16(values[j]), AsBf16(x_pair));
  };
  const int64_t pairs = piece.len / 2;
  __m512i values[2], next[2];
  int64_t pair = 0;
  for (; pair + 2 <= pairs; pair += 2) {
    for (int64_t line = 0; line < 2 * rows.prefetch_step; line += kCacheLine) {
      _mm_prefetch(rows.prefetch + pair * rows.prefetch_step + line, _MM_HINT_T0);
    }
    weights.Load(w + pair * Weights::kPairBytes, values);
    weights.Load(w + (pair + 1) * Weights::kPairBytes, next);
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {  // both pairs of a row together: there are more rows than address registers
      add(i, values, LoadPair(x[i] + 2 * pair));
      add(i, next, LoadPair(x[i] + 2 * pair + 2));
    }
  }
  if (pair < pairs) {
    weights.Load(w + pair * Weights::kPairBytes, values);
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) add(i, values, LoadPair(x[i] + 2 * pair));
  }
  if (piece.len % 2 != 0) {  // the last k alone: reading a pair would run past the end of x's row
    weights.Load(w + pairs * Weights::kPairBytes, values);
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) add(i, values, _mm512_set1_epi32(x[i][piece.len - 1]));
  }
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    if (!piece.ends_block) {
      FOREDRAFT_UNROLL
      for (int j = 0; j < 2; ++j) chains.sums[row + i][j] = sums[i][j];
      continue;
    }
    AddToTile<Weights>(args, piece, row + i, sums[i]);
  }
}

constexpr int kBlockRows = 12;      // 24 accumulator registers
constexpr int32_t kPieceLen = 256;  // 16 KB of BF16: half a first-level cache

// At most Max rows.
template <class Weights, int Max = kBlockRows>
void FewRows(const GemmTileArgs& args, const Weights& weights, const unsigned char* w, const Piece& piece,
             const RowBlock& rows, Chains& chains) {
  if constexpr (Max > 1) {
    if (rows.count < Max) return FewRows<Weights, Max - 1>(args, weights, w, piece, rows, chains);
  }
  Block<Weights, Max>(args, weights, w, piece, rows, chains);
}

template <class Weights>
void AllRows(const GemmTileArgs& args, const Weights& weights, const Piece& piece, Chains& chains) {
  const unsigned char* const w = args.panel + piece.pair * Weights::kPairBytes;
  const int64_t piece_bytes = piece.len / 2 * Weights::kPairBytes;
  const int blocks = (args.rows + kBlockRows - 1) / kBlockRows;
  for (int block = 0; block < blocks; ++block) {
    const int row = args.rows * block / blocks;
    const unsigned char* const prefetch =
        blocks == 1 ? w + kPrefetchDistance : w + piece_bytes + piece_bytes * block / blocks;
    const RowBlock rows = {row, args.rows * (block + 1) / blocks - row, prefetch,
                           Weights::kPairBytes / blocks};
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
  const Weights weights;
  Chains chains;
  ForEachPiece(args, args.rows <= kBlockRows ? kAllOfK : kPieceLen,
               [&](const Piece& piece) { AllRows(args, weights, piece, chains); });
}

// sums = the tree over `count` segments from `segment` on, for rows [row, row + R). Sums stay in registers,
// accumulated as in Block.
template <int count, int R>
[[gnu::always_inline]] inline void SumSegments(const GemmTileArgs& args, int row, int32_t segment,
                                               __m512 (&sums)[R][2]) {
  if constexpr (count > 1) {
    __m512 right[R][2];
    SumSegments<count / 2, R>(args, row, segment, sums);
    SumSegments<count / 2, R>(args, row, segment + count / 2, right);
    FOREDRAFT_UNROLL
    for (int i = 0; i < 2 * R; ++i)
      sums[i / 2][i % 2] = _mm512_add_ps(sums[i / 2][i % 2], right[i / 2][i % 2]);
  } else {
    const int64_t pairs = args.k / 2, first = segment * pairs;
    const unsigned char* const w = args.panel + first * Bf16Weights::kPairBytes;
    FOREDRAFT_UNROLL
    for (int i = 0; i < 2 * R; ++i) sums[i / 2][i % 2] = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < pairs; ++pair) {
      __m512i values[2];
      Bf16Weights().Load(w + pair * Bf16Weights::kPairBytes, values);
      _mm_prefetch(w + pair * Bf16Weights::kPairBytes + kPrefetchDistance, _MM_HINT_T0);
      _mm_prefetch(w + pair * Bf16Weights::kPairBytes + kPrefetchDistance + kCacheLine, _MM_HINT_T0);
      FOREDRAFT_UNROLL
      for (int i = 0; i < R; ++i) {
        const __m512i x = LoadPair(args.x[row + i] + 2 * (first + pair));
        FOREDRAFT_UNROLL
        for (int j = 0; j < 2; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], AsBf16(values[j]), AsBf16(x));
      }
    }
  }
}

template <int count, int R>
[[gnu::noinline]] void SegmentRows(const GemmTileArgs& args, int row) {
  __m512 sums[R][2];
  SumSegments<count, R>(args, row, 0, sums);
  FOREDRAFT_UNROLL
  for (int i = 0; i < 2 * R; ++i)
    _mm512_storeu_ps(args.tile + row * kPanelWidth + 16 * i, sums[i / 2][i % 2]);
}

template <int count>
void Segments(const GemmTileArgs& args) {
  int row = 0;
  for (; row + 2 <= args.rows; row += 2) SegmentRows<count, 2>(args, row);
  if (row < args.rows) SegmentRows<count, 1>(args, row);
}

}  // namespace

void GemmBf16SegmentsAvx512(const GemmTileArgs& args, int32_t segments) {
  if (segments == 8) return Segments<8>(args);
  segments == 4 ? Segments<4>(args) : Segments<2>(args);
}
void GemmBf16Avx512(const GemmTileArgs& args) { Tile<Bf16Weights>(args); }
void GemmF8Avx512(const GemmTileArgs& args) { Tile<F8Weights>(args); }

}  // namespace foredraft
