#ifndef FOREDRAFT_KERNELS_CUDA_GEMM_GATHER_H_
#define FOREDRAFT_KERNELS_CUDA_GEMM_GATHER_H_

// Rows of BF16 made fit for the copy engine, which cannot gather and wants 16-byte alignment.

#include <cstdint>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/tensor.h"

namespace foredraft::cuda {

// Row r of `out` = row (x_rows ? x_rows[r] : r) of x, for the first *row_count rows (null: `rows`).
void GatherRows(Stream& stream, Matrix<bf16> out, Matrix<const bf16> x, const int32_t* x_rows,
                const int32_t* row_count, int32_t rows);

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_GEMM_GATHER_H_
