// The tile kernel with AVX2, FMA and F16C: weights are widened to FP32, BF16 ones as they are multiplied, FP8
// ones once for all rows of a piece.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/gemm/rows_avx2.h"

namespace foredraft {
namespace {

struct Bf16 {
  static constexpr int kPairBytes = 128;
  static constexpr float kScale = 1.0f;
};

template <int Width>
struct Bf16Weights {
  static constexpr int kPairElements = Bf16::kPairBytes;

  static __m256i Load(const unsigned char* w, int vector) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32 * vector));
  }
  static __m256 Even(const unsigned char* w, int vector) {
    if (Width == kPanelWidth && 32 * vector % kLine == 0) {
      _mm_prefetch(w + 32 * vector + kFetchDistance, _MM_HINT_T0);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(Load(w, vector), 16));
  }
  static __m256 Odd(const unsigned char* w, int vector) {
    const __m256i high = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
    return _mm256_castsi256_ps(_mm256_and_si256(Load(w, vector), high));
  }
};

// E4M3 through FP16: shifted into an FP16's exponent and mantissa, the bits give value / 256 exactly,
// subnormals included. kScale multiplies the 256 back in.
struct F8 {
  static constexpr int kPairBytes = 64;
  static constexpr float kScale = 256.0f;

  // Widens a pair of k of 16 outputs, the second k `width` past the first. Returns 0xff where a code is NaN;
  // that output is 480.
  static __m256i Widen(const unsigned char* w, int width, float* out) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
    StoreHalves(_mm256_slli_epi16(codes, 8), out);
    StoreHalves(codes, out + width);
    const __m256i magnitudes = _mm256_set1_epi8(0x7f);
    return _mm256_cmpeq_epi8(_mm256_and_si256(codes, magnitudes), magnitudes);
  }

  // `words`: 16 codes, in the high bytes. The shift leaves a copy of the sign in bit 14.
  static void StoreHalves(__m256i words, float* out) {
    const __m256i no_copy = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
    const __m256i halves = _mm256_and_si256(_mm256_srai_epi16(words, 1), no_copy);
    _mm256_store_ps(out, _mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
    _mm256_store_ps(out + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
  }

  // Puts NaNs where a code says so.
  static void MarkNans(const unsigned char* w, int width, float* out) {
    for (int i = 0; i < 2 * width; ++i) {
      if ((w[i] & 0x7f) == 0x7f) out[i % 2 * width + i / 2] = __builtin_nanf("");
    }
  }
};

// A piece of k of Width outputs, in the form in which MultiplyRows takes it.
template <int Width>
struct Bf16Piece {
  using Format = Bf16;
  using Weights = Bf16Weights<Width>;
  const unsigned char* Take(const unsigned char* w, int32_t /*len*/) { return w; }
};
template <int Width>
struct F8Piece {
  using Format = F8;
  using Weights = WideWeights<Width>;
  alignas(32) float wide[kPieceLen * Width];

  const float* Take(const unsigned char* w, int32_t len) {
    const int32_t pairs = (len + 1) / 2;
    __m256i nans = _mm256_setzero_si256();
    for (int32_t i = 0; i < pairs; ++i) {
      if (Width == kPanelWidth) _mm_prefetch(w + i * Format::kPairBytes + kFetchDistance, _MM_HINT_T0);
      for (int output = 0; output < Width; output += 16) {
        nans = _mm256_or_si256(nans, Format::Widen(w + i * Format::kPairBytes + 2 * output, Width,
                                                   wide + i * 2 * Width + output));
      }
    }
    if (_mm256_testz_si256(nans, nans)) return wide;
    for (int32_t i = 0; i < pairs; ++i)
      Format::MarkNans(w + i * Format::kPairBytes, Width, wide + i * 2 * Width);
    return wide;
  }
};

// The sums of all rows between two pieces of a k block.
struct BlockSums {
  alignas(32) float even[kMaxTileRows][kPanelWidth];
  alignas(32) float odd[kMaxTileRows][kPanelWidth];
};

template <int R, int Width>
inline void Load(const BlockSums& from, int32_t row, int32_t output, RowSums<R, Width>& sums) {
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    for (int v = 0; v < Width / 8; ++v) {
      sums.even[i][v] = _mm256_load_ps(from.even[row + i] + output + 8 * v);
      sums.odd[i][v] = _mm256_load_ps(from.odd[row + i] + output + 8 * v);
    }
  }
}

template <int R, int Width>
inline void Store(const RowSums<R, Width>& sums, int32_t row, int32_t output, BlockSums& to) {
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    for (int v = 0; v < Width / 8; ++v) {
      _mm256_store_ps(to.even[row + i] + output + 8 * v, sums.even[i][v]);
      _mm256_store_ps(to.odd[row + i] + output + 8 * v, sums.odd[i][v]);
    }
  }
}

// Adds a k block's sums, times its scales, to the tile.
template <int R, int Width>
inline void AddToTile(const RowSums<R, Width>& sums, const float* scales, float factor, float* tile) {
  FOREDRAFT_UNROLL
  for (int v = 0; v < Width / 8; ++v) {
    __m256 scale = _mm256_set1_ps(factor);
    if (scales != nullptr) scale = _mm256_mul_ps(scale, _mm256_loadu_ps(scales + 8 * v));
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      float* const out = tile + i * kPanelWidth + 8 * v;
      const __m256 sum = _mm256_add_ps(sums.even[i][v], sums.odd[i][v]);
      _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), _mm256_mul_ps(sum, scale)));
    }
  }
}

// Adds a k block of `len` at `w`, by Width outputs.
template <int Width, template <int> class Piece>
void AddBlock(const GemmTileArgs& args, const unsigned char* w, int32_t begin, int32_t len,
              const float* scales) {
  using Format = typename Piece<Width>::Format;
  constexpr int64_t kPieceBytes = int64_t{kPieceLen} / 2 * Format::kPairBytes;
  WideRows rows;
  BlockSums block;
  Piece<Width> piece;
  for (int32_t first = 0; first < len; first += kPieceLen, w += kPieceBytes) {
    const int32_t piece_len = len - first < kPieceLen ? len - first : kPieceLen;
    WidenRows(args, begin + first, piece_len, rows);
    Prefetch next(w + kPieceBytes, kPieceBytes, kPanelWidth / Width * RowBlocks(args.rows));
    for (int32_t output = 0; output < kPanelWidth; output += Width) {
      const auto* const weights = piece.Take(w + output * Format::kPairBytes / kPanelWidth, piece_len);
      ForRowBlocks<Width>(args.rows, [&](int32_t row, auto count) {
        if (Width < kPanelWidth) next.Step();
        RowSums<count.value, Width> sums;
        if (first == 0) {
          sums.Clear();
        } else {
          Load(block, row, output, sums);
        }
        MultiplyRows<typename Piece<Width>::Weights>(weights, rows.x[row], piece_len, sums);
        if (first + piece_len < len) {
          Store(sums, row, output, block);
        } else {
          AddToTile(sums, scales != nullptr ? scales + output : nullptr, Format::kScale,
                    args.tile + row * kPanelWidth + output);
        }
      });
    }
  }
}

template <template <int> class Piece>
void Tile(const GemmTileArgs& args) {
  for (int i = 0; i < args.rows * kPanelWidth; ++i) args.tile[i] = 0.0f;
  const unsigned char* w = args.panel;
  const float* scales = args.scales;
  for (int32_t first = 0; first < args.k; first += args.block_k) {
    const int32_t len = args.k - first < args.block_k ? args.k - first : args.block_k;
    if (args.rows == 1) {
      AddBlock<kPanelWidth, Piece>(args, w, first, len, scales);
    } else {
      AddBlock<kHalf, Piece>(args, w, first, len, scales);
    }
    w += static_cast<int64_t>((len + 1) / 2) * Piece<kHalf>::Format::kPairBytes;
    if (scales != nullptr) scales += kPanelWidth;
  }
}

}  // namespace

void GemmBf16Avx2(const GemmTileArgs& args) { Tile<Bf16Piece>(args); }
void GemmF8Avx2(const GemmTileArgs& args) { Tile<F8Piece>(args); }

}  // namespace foredraft
