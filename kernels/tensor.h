#pragma once

// Views of device memory, passed by value inside op parameters. They own nothing and are trivially copyable,
// because a graph node stores them.

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kv_row.h"
#include "kernels/weight_format.h"

namespace foredraft {

// Rows of `cols` adjacent elements, `stride` elements apart. data == nullptr: absent (for example an optional
// output).
template <class T>
struct Matrix {
  T* data = nullptr;
  int32_t rows = 0;
  int32_t cols = 0;
  int64_t stride = 0;

  constexpr T* row(int64_t index) const { return data + index * stride; }
  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr operator Matrix<const T>() const { return {data, rows, cols, stride}; }

  // The first `count` rows.
  constexpr Matrix first_rows(int32_t count) const { return {data, count, cols, stride}; }
  // Rows [first, first + count).
  constexpr Matrix row_range(int32_t first, int32_t count) const { return {row(first), count, cols, stride}; }
  // Columns [first, first + count) of every row.
  constexpr Matrix columns(int32_t first, int32_t count) const { return {data + first, rows, count, stride}; }
};

template <class T>
Matrix<T> Dense(T* data, int32_t rows, int32_t cols) {
  return {data, rows, cols, cols};
}

// A weight [n, k] (y = x W^T) in the backend's own layout: only the backend that packed it reads `data`. It
// may be a part of a larger weight, with some of its outputs or some of its inputs; products with it then
// give the bits of the whole. kernels/rules/weight_segments.h defines segments.
struct PackedWeight {
  const void* data = nullptr;
  const float* scales = nullptr;  // in the backend's layout; null where `data` has them or there are none
  int32_t n = 0;                  // output features
  int32_t k = 0;                  // input features
  WeightFormat format;            // as packed
  // The canonical segments of k that this part has, a power of two up to kMaxSegments. 0: the weight has no
  // segments, and a kernel may split k as it likes. 1: the part is one segment, which no kernel splits.
  int32_t segments = 0;
  // The shape of the whole weight; 0: n, k. Where a shape decides bits, as it does by splits of k, this one
  // counts.
  int32_t whole_n = 0;
  int32_t whole_k = 0;

  constexpr explicit operator bool() const { return data != nullptr; }

  constexpr int32_t plan_n() const { return whole_n > 0 ? whole_n : n; }
  constexpr int32_t plan_k() const { return whole_k > 0 ? whole_k : k; }
};

// `count` weights of one shape and format: the experts of a layer, the heads of W_UK.
struct PackedWeights {
  const PackedWeight* items = nullptr;  // [count], device memory
  int32_t count = 0;
  PackedWeight first;        // a copy of items[0] in host memory
  int64_t data_stride = 0;   // bytes from one item's data to the next; 0: the items are not adjacent
  int64_t scale_stride = 0;  // floats from one item's scales to the next; 0 likewise

  constexpr explicit operator bool() const { return items != nullptr; }
};

// Activations quantised for FP8 weights: E4M3 codes with one scale per row and 128 columns; the value is code
// * scale. scale = max(amax of the 128 columns, 1e-4) / 448, code = e4m3(x / scale), x a BF16 value, both
// divisions rounded to nearest. Codes past the last column are undefined.
struct QuantizedRows {
  uint8_t* codes = nullptr;  // [rows, pitch]
  float* scales = nullptr;   // [ceil(cols / 128), scale_pitch]
  int32_t rows = 0;
  int32_t cols = 0;
  int64_t pitch = 0;         // bytes, a multiple of 16
  int64_t scale_pitch = 0;   // floats, a multiple of 4
  int64_t scale_stride = 1;  // floats from a row's scale to the next row's; not 1 in RowsInOnePiece

  constexpr explicit operator bool() const { return codes != nullptr; }

  constexpr QuantizedRows first_rows(int32_t count) const {
    return {codes, scales, count, cols, pitch, scale_pitch, scale_stride};
  }
  // Rows [first, first + count), first a multiple of 4, because scales are read 16 bytes at a time.
  constexpr QuantizedRows row_range(int32_t first, int32_t count) const {
    return {codes + first * pitch, scales + first * scale_stride, count, cols, pitch, scale_pitch,
            scale_stride};
  }
  constexpr QuantizedRows first_columns(int32_t count) const {
    return {codes, scales, rows, count, pitch, scale_pitch, scale_stride};
  }
};

inline constexpr int32_t kQuantGroup = 128;  // columns that share a scale

// Bytes of a quantised row in one piece, as ranks exchange it: its codes, then its scales, each padded to a
// multiple of 16 bytes. They are 0.516 of a BF16 row's bytes where the columns are a multiple of 512.
constexpr int64_t QuantizedRowBytes(int32_t cols) {
  const int64_t scale_bytes = int64_t{(cols + kQuantGroup - 1) / kQuantGroup} * int64_t{sizeof(float)};
  return (int64_t{cols} + 15) / 16 * 16 + (scale_bytes + 15) / 16 * 16;
}

// Rows of QuantizedRowBytes, one after another. grouped_gemm reads them through x_rows, copy_quantized reads
// and writes them; no other op takes them. `memory`: rows * QuantizedRowBytes(cols), 16-byte aligned.
inline QuantizedRows RowsInOnePiece(void* memory, int32_t rows, int32_t cols) {
  auto* const codes = static_cast<uint8_t*>(memory);
  const int64_t bytes = QuantizedRowBytes(cols);
  return {.codes = codes,
          .scales = reinterpret_cast<float*>(codes + (int64_t{cols} + 15) / 16 * 16),
          .rows = rows,
          .cols = cols,
          .pitch = bytes,
          .scale_pitch = 1,
          .scale_stride = bytes / int64_t{sizeof(float)}};
}

// Rows rounded to NVFP4 (kernels/rules/nvfp4_rows.h), as ranks exchange them. A row has its codes, two to a
// byte, the first in the low nibble, then the E4M3 scales of its groups of 16, and is padded to a multiple of
// 16 bytes: 0.281 of a BF16 row's bytes where the columns are a multiple of 256.
struct Nvfp4Rows {
  uint8_t* data = nullptr;  // [rows, Nvfp4RowBytes(cols)], 16-byte aligned
  int32_t rows = 0;
  int32_t cols = 0;  // a multiple of 16

  constexpr explicit operator bool() const { return data != nullptr; }
  constexpr int64_t row_bytes() const { return (int64_t{cols} / 2 + cols / 16 + 15) / 16 * 16; }
  constexpr uint8_t* codes(int64_t row) const { return data + row * row_bytes(); }
  constexpr uint8_t* scales(int64_t row) const { return codes(row) + cols / 2; }
};
constexpr int64_t Nvfp4RowBytes(int32_t cols) { return Nvfp4Rows{.cols = cols}.row_bytes(); }

// The scales by which the inputs of an array's weights are rounded to NVFP4; absent: they are not rounded.
struct InputScales {
  const float* values = nullptr;  // [count], device memory; at least one
  bool alike = false;             // one scale for the whole layer, so values[0] is that of all ranks' weights

  constexpr explicit operator bool() const { return values != nullptr; }
};

// The paged cache of one layer and its block tables. Position s of a slot is row s % tokens_per_block of
// block block_tables[slot * table_stride + s / tokens_per_block]. Block 0 is scratch: rows of idle slots and
// unmapped positions go there, and nothing reads them.
struct KvLayer {
  uint8_t* data = nullptr;                // [block_count, tokens_per_block, row_bytes]
  const int32_t* block_tables = nullptr;  // [slots, table_stride]
  int32_t table_stride = 0;               // blocks per slot
  int32_t block_count = 0;                // blocks of `data`, scratch included
  int32_t tokens_per_block = 0;
  int32_t latent_dim = 0;      // kv_lora_rank: c, after kv_a_layernorm
  int32_t rope_dim = 0;        // qk_rope_head_dim: k_pe, after rope
  DType dtype = DType::kBF16;  // of the latent, one of kKvDTypes
  bool fp8_products = false;   // KvFormat

  constexpr bool coded() const { return layout().coded(); }
  constexpr KvRowLayout layout() const { return {latent_dim, rope_dim, dtype}; }
  constexpr int32_t row_width() const { return latent_dim + rope_dim; }  // elements
  constexpr int32_t row_bytes() const { return layout().bytes(); }
  constexpr uint8_t* row(int32_t slot, int32_t position) const {
    const int64_t block =
        block_tables[static_cast<int64_t>(slot) * table_stride + position / tokens_per_block];
    return data + (block * tokens_per_block + position % tokens_per_block) * row_bytes();
  }
};

// The slot and position of each row of a batch. A row with slot -1 is idle: ops read nothing for it and write
// nothing but its row of dense outputs, whose content is then undefined.
struct RowIndex {
  const int32_t* slots = nullptr;      // [rows], -1 = idle
  const int32_t* positions = nullptr;  // [rows], position of the row's token in its sequence
  int32_t rows = 0;
};

// Rows [first, first + count) of a batch.
constexpr RowIndex RowsOf(const RowIndex& index, int32_t first, int32_t count) {
  return {.slots = index.slots + first, .positions = index.positions + first, .rows = count};
}

// The row of the same slot at `position`, which is at most the row's own position; -1 if this forward has no
// such row. Requires the rows of a slot to be adjacent, in ascending order of position.
constexpr int64_t RowAt(const RowIndex& index, int64_t row, int32_t position) {
  const int64_t at = row - (index.positions[row] - position);
  return at >= 0 && index.slots[at] == index.slots[row] && index.positions[at] == position ? at : -1;
}

}  // namespace foredraft
