#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>

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

// Divides by a number of rows that the host passes to the kernel. The compiler does not know it, so an
// ordinary division by it takes about 30 instructions; this one takes three. With
// 2^(shift - 1) < rows <= 2^shift, (2^32 + multiplier) / 2^(32 + shift) is so little above 1 / rows that
// quotients of numbers below 2^31 are exact.
class RowDivisor {
 public:
  explicit RowDivisor(int32_t rows) {
    const uint64_t divisor = std::max(rows, 1);
    shift_ = std::bit_width(divisor - 1);
    multiplier_ = static_cast<uint32_t>((((uint64_t{1} << shift_) - divisor) << 32) / divisor + 1);
  }
  __device__ __forceinline__ int32_t Quotient(int32_t number) const {
    return static_cast<int32_t>((__umulhi(number, multiplier_) + number) >> shift_);
  }

 private:
  uint32_t multiplier_;
  int32_t shift_;
};

// A paged row on its way from its index to its address: `block` loads while other work is done.
struct PagedRow {
  int32_t index;        // negative: there is no such row
  int32_t table_index;  // of its block
  int32_t block;        // 0: the row has no memory

  __device__ __forceinline__ PagedRow() = default;
  // Starts to load the block; for a negative index, row 0's.
  template <class T>
  __device__ __forceinline__ PagedRow(const PagedRows<T>& rows, const RowDivisor& divisor, int32_t slot,
                                      int32_t index)
      : index(index),
        table_index(divisor.Quotient(max(index, 0))),
        block(rows.block_tables[int64_t{slot} * rows.table_stride + table_index]) {}

  template <class T>
  __device__ __forceinline__ T* At(const PagedRows<T>& rows) const {
    return rows.data + (int64_t{block - table_index} * rows.rows_per_block + index) * rows.width;
  }
};

}  // namespace foredraft::cuda
