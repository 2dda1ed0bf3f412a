#pragma once

// Rows of any alignment, loaded into shared memory 16 bytes at a time. Device code.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/ptx.h"

namespace foredraft::cuda {

// Loads bytes [first, first + 16) of a row; zeros past row_bytes, or if `row` is null. With vector_loads,
// rows start at multiples of 16 bytes, and the copy is asynchronous.
__device__ __forceinline__ void LoadChunk(unsigned char* shared, const unsigned char* row, int32_t first,
                                          int32_t row_bytes, bool vector_loads) {
  if (row == nullptr || first >= row_bytes) {
    *reinterpret_cast<uint4*>(shared) = make_uint4(0, 0, 0, 0);
  } else if (vector_loads && first + 16 <= row_bytes) {
    CpAsync16(shared, row + first);
  } else {
    for (int i = 0; i < 16; ++i) shared[i] = first + i < row_bytes ? row[first + i] : 0;
  }
}

}  // namespace foredraft::cuda
