#ifndef FOREDRAFT_KERNELS_CUDA_QUANTIZE_H_
#define FOREDRAFT_KERNELS_CUDA_QUANTIZE_H_

// Activations for FP8 weights: rows of BF16 to E4M3 codes with one scale per row and 128 inputs. A code
// stands for code * scale. scale = max(largest |x| of the 128, 1e-4) / 448, code = e4m3(x / scale), both
// divisions rounded to nearest.

#include <cstdint>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/tensor.h"

namespace foredraft::cuda {

inline constexpr int32_t kQuantGroup = 128;

struct QuantizedRows {
  uint8_t* codes = nullptr;  // [row_capacity, pitch]; zeros from k on
  float* scales = nullptr;   // [ceil(k / 128), row_capacity]
  int64_t pitch = 0;         // bytes, a multiple of 16
  int64_t row_capacity = 0;  // rows, rounded up: a tile may read, and must not use, the rows past the last
};

// The shape of `rows` quantised rows of k inputs, and the bytes they take; Place says where.
struct QuantizedShape {
  // row_unit: what the capacity is a multiple of, for whoever reads tiles.
  QuantizedShape(int64_t rows, int32_t k, int64_t row_unit = 128);
  QuantizedRows Place(void* memory) const;  // 1024-byte aligned

  int64_t pitch;
  int64_t row_capacity;
  int64_t code_bytes;
  int64_t bytes;
};

// Row r of `out` is row (x_rows ? x_rows[r] : r) of x, for the first *row_count rows (null: `rows`).
void QuantizeRows(Stream& stream, const QuantizedRows& out, Matrix<const bf16> x, const int32_t* x_rows,
                  const int32_t* row_count, int32_t rows);

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_QUANTIZE_H_
