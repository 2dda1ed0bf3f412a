#pragma once

// What the tile kernels with AVX2 share: rows of x times FP32 weights, three rows and half a panel at a time,
// a piece of k after another. x is widened to FP32 once per piece, so that a product loads it once: widening
// it at each product would take as many instructions as the products.

#include <immintrin.h>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

constexpr int kHalf = 16;  // outputs of half a panel, two registers, which several rows take at a time
constexpr int32_t kPieceLen = 128;  // k: x and the weights of a piece stay in the first cache
constexpr int kBlockRows = 3;       // 12 accumulator registers

// Rows of x, [rows][kPieceLen].
struct WideRows {
  alignas(32) float x[kMaxTileRows][kPieceLen];
};

inline __m256 WidenEight(const void* bits) {
  const __m128i words = _mm_loadu_si128(static_cast<const __m128i*>(bits));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

// Widens k [first, first + len) of all rows.
inline void WidenRows(const GemmTileArgs& args, int32_t first, int32_t len, WideRows& rows) {
  for (int32_t row = 0; row < args.rows; ++row) {
    const uint16_t* const x = args.x[row] + first;
    float* const wide = rows.x[row];
    int32_t k = 0;
    for (; k + 8 <= len; k += 8) _mm256_store_ps(wide + k, WidenEight(x + k));
    for (; k < len; ++k) {
      const uint32_t bits = static_cast<uint32_t>(x[k]) << 16;
      __builtin_memcpy(wide + k, &bits, sizeof(bits));
    }
  }
}

// Sums of R rows x Width outputs, of even and of odd k.
template <int R, int Width>
struct RowSums {
  static constexpr int kVectors = Width / 8;

  __m256 even[R][kVectors];
  __m256 odd[R][kVectors];

  void Clear() {
    FOREDRAFT_UNROLL
    for (int i = 0; i < R; ++i) {
      for (int v = 0; v < kVectors; ++v) even[i][v] = odd[i][v] = _mm256_setzero_ps();
    }
  }
};

// Weights of a piece of Width outputs in FP32, [k][Width].
template <int Width>
struct WideWeights {
  static constexpr int kPairElements = 2 * Width;
  static __m256 Even(const float* w, int vector) { return _mm256_load_ps(w + 8 * vector); }
  static __m256 Odd(const float* w, int vector) { return _mm256_load_ps(w + Width + 8 * vector); }
};

template <int R, int kVectors>
inline void AddProducts(const __m256 (&weights)[kVectors], const float* x, __m256 (&sums)[R][kVectors]) {
  FOREDRAFT_UNROLL
  for (int i = 0; i < R; ++i) {
    const __m256 value = _mm256_broadcast_ss(x + i * kPieceLen);
    for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm256_fmadd_ps(weights[v], value, sums[i][v]);
  }
}

// Adds the products of a piece. Weights says how a pair of k lies at `w`.
template <class Weights, int R, int Width, class Element>
inline void MultiplyRows(const Element* w, const float* x, int32_t len, RowSums<R, Width>& sums) {
  constexpr int kVectors = Width / 8;
  __m256 weights[kVectors];
  for (int32_t k = 0; k + 2 <= len; k += 2, w += Weights::kPairElements) {
    FOREDRAFT_UNROLL
    for (int v = 0; v < kVectors; ++v) weights[v] = Weights::Even(w, v);
    AddProducts(weights, x + k, sums.even);
    FOREDRAFT_UNROLL
    for (int v = 0; v < kVectors; ++v) weights[v] = Weights::Odd(w, v);
    AddProducts(weights, x + k + 1, sums.odd);
  }
  if (len % 2 == 0) return;
  FOREDRAFT_UNROLL
  for (int v = 0; v < kVectors; ++v) weights[v] = Weights::Even(w, v);
  AddProducts(weights, x + len - 1, sums.even);
}

constexpr int32_t RowBlocks(int32_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

// Calls body(row, count) for blocks of rows: as many of kBlockRows as there are, then the rest. `count` is a
// constant. With a whole panel, registers have room for one row.
template <int R>
struct RowCount {
  static constexpr int value = R;
};
template <int Width, class Body>
inline void ForRowBlocks(int32_t rows, const Body& body) {
  if constexpr (Width > kHalf) return body(0, RowCount<1>());
  int32_t row = 0;
  for (; row + kBlockRows <= rows; row += kBlockRows) body(row, RowCount<kBlockRows>());
  if (rows - row == 2) body(row, RowCount<2>());
  if (rows - row == 1) body(row, RowCount<1>());
}

constexpr int64_t kLine = 64;             // bytes that are fetched at once
constexpr int64_t kFetchDistance = 1024;  // bytes between what one row reads and what it has fetched

// Fetches weights while several rows are multiplied by earlier ones: the caller asks for the next share at
// each row block. One row takes its weights as fast as memory gives them, so it fetches line by line instead.
class Prefetch {
 public:
  // `steps` shares of the `bytes` at `data`, which need not be mapped.
  Prefetch(const unsigned char* data, int64_t bytes, int64_t steps)
      : data_(data), end_(data + bytes), step_((bytes / kLine + steps) / steps * kLine) {}

  void Step() {
    const unsigned char* const end = end_ - data_ < step_ ? end_ : data_ + step_;
    for (; data_ < end; data_ += kLine) _mm_prefetch(data_, _MM_HINT_T0);
  }

 private:
  const unsigned char* data_;
  const unsigned char* end_;
  int64_t step_;
};

}  // namespace
}  // namespace foredraft
