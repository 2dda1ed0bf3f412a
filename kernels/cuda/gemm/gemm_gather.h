#pragma once

// Copies BF16 rows into a dense, 16-byte aligned matrix for TMA, which cannot gather rows.

#include <cstdint>

#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/tensor.h"

namespace foredraft::cuda {

// out[r] = x[x_rows ? x_rows[r] : r] for the first *row_count rows (all `rows` if row_count is null).
void GatherRows(Stream& stream, Matrix<bf16> out, Matrix<const bf16> x, const int32_t* x_rows,
                const int32_t* row_count, int32_t rows);

}  // namespace foredraft::cuda
