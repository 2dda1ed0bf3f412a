#ifndef FOREDRAFT_KERNELS_CUDA_QUANTIZE_H_
#define FOREDRAFT_KERNELS_CUDA_QUANTIZE_H_

// Activations for FP8 weights (QuantizedRows), where no norm or activation before the GEMM has written them.

#include <cstdint>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/tensor.h"

namespace foredraft::cuda {

// The bytes that `rows` quantised rows of k columns take; Place says where.
struct QuantizedShape {
  QuantizedShape(int32_t rows, int32_t k);
  QuantizedRows Place(void* memory) const;  // 1024-byte aligned

  int32_t rows;
  int32_t k;
  int64_t pitch;
  int64_t scale_pitch;  // rows, in fours: so many rows of codes have memory
  int64_t code_bytes;
  int64_t bytes;
};

// Row r of `out` is row (x_rows ? x_rows[r] : r) of x, for the first *row_count rows (null: `rows`).
void QuantizeRows(Stream& stream, const QuantizedRows& out, Matrix<const bf16> x, const int32_t* x_rows,
                  const int32_t* row_count, int32_t rows);

// The same, of rows that are quantised already.
void CopyQuantizedRows(Stream& stream, const QuantizedRows& out, const QuantizedRows& x,
                       const int32_t* x_rows, const int32_t* row_count, int32_t rows);

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_QUANTIZE_H_
