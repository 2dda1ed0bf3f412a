#pragma once

// Quantises activations for FP8 weights (QuantizedRows) when the preceding norm or activation did not.

#include <cstdint>

#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/tensor.h"

namespace foredraft::cuda {

// The memory layout of `rows` quantised rows of k columns.
struct QuantizedShape {
  QuantizedShape(int32_t rows, int32_t k);
  QuantizedRows View(void* memory) const;  // `memory`: `bytes`, 1024-byte aligned

  int32_t rows;
  int32_t k;
  int64_t pitch;
  int64_t scale_pitch;  // rows, rounded up to a multiple of 4; the codes have memory for as many rows
  int64_t code_bytes;
  int64_t bytes;
};

// out[r] = x[x_rows ? x_rows[r] : r] for the first *row_count rows (all `rows` if row_count is null).
void QuantizeRows(Stream& stream, const QuantizedRows& out, Matrix<const bf16> x, const int32_t* x_rows,
                  const int32_t* row_count, int32_t rows);

// QuantizeRows for rows that are quantised already: copies them.
void CopyQuantizedRows(Stream& stream, const QuantizedRows& out, const QuantizedRows& x,
                       const int32_t* x_rows, const int32_t* row_count, int32_t rows);

}  // namespace foredraft::cuda
