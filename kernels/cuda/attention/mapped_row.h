#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/attention.h"

namespace foredraft::cuda {

// A paged row that has memory. If it has none, an invariant is broken and the kernel traps, which ends the
// process as a CHECK does on the CPU.
template <class T>
__device__ __forceinline__ T* MappedRow(const PagedRows<T>& rows, int32_t slot, int32_t index) {
  T* const row = rows.row(slot, index);
  if (row == nullptr) __trap();
  return row;
}

// A paged row whose block is known.
template <class T>
__device__ __forceinline__ T* MappedRow(const PagedRows<T>& rows, int64_t block, int32_t index) {
  if (block == 0) __trap();
  return rows.row_of_block(block, index);
}

}  // namespace foredraft::cuda
