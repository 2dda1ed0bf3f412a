#pragma once

// Rows processed four adjacent columns at a time: with one vector load or store if the matrix is aligned for
// it (`aligned`), else element by element up to the last column. A thread has the same columns either way, so
// the bits are the same.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/tensor.h"

namespace foredraft::cuda {

struct Vec4 {
  float x[4];
};

// Columns [first, first + 4) of a row of `cols`; 0 past its end.
template <bool aligned>
__device__ __forceinline__ Vec4 LoadVec4(const float* row, int32_t first, int32_t cols) {
  Vec4 four = {};
  if constexpr (aligned) {
    const float4 loaded = *reinterpret_cast<const float4*>(row + first);
    four = {{loaded.x, loaded.y, loaded.z, loaded.w}};
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i < cols) four.x[i] = row[first + i];
    }
  }
  return four;
}

template <bool aligned>
__device__ __forceinline__ Vec4 LoadVec4(const bf16* row, int32_t first, int32_t cols) {
  Vec4 four = {};
  if constexpr (aligned) {
    const ushort4 loaded = *reinterpret_cast<const ushort4*>(row + first);
    four = {
        {ToFloat(bf16{loaded.x}), ToFloat(bf16{loaded.y}), ToFloat(bf16{loaded.z}), ToFloat(bf16{loaded.w})}};
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i < cols) four.x[i] = ToFloat(row[first + i]);
    }
  }
  return four;
}

template <bool aligned>
__device__ __forceinline__ void StoreVec4(float* row, int32_t first, int32_t cols, const Vec4& four) {
  if constexpr (aligned) {
    *reinterpret_cast<float4*>(row + first) = make_float4(four.x[0], four.x[1], four.x[2], four.x[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i < cols) row[first + i] = four.x[i];
    }
  }
}

template <bool aligned>
__device__ __forceinline__ void StoreVec4(bf16* row, int32_t first, int32_t cols, const Vec4& four) {
  if constexpr (aligned) {
    *reinterpret_cast<ushort4*>(row + first) = make_ushort4(ToBf16(four.x[0]).bits, ToBf16(four.x[1]).bits,
                                                            ToBf16(four.x[2]).bits, ToBf16(four.x[3]).bits);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i < cols) row[first + i] = ToBf16(four.x[i]);
    }
  }
}

// ---- for the host ----

// Whether every row can be loaded and stored with `aligned`; true for an absent matrix.
template <class T>
bool IsVec4Aligned(const T* data, int64_t stride, int32_t cols) {
  return reinterpret_cast<uintptr_t>(data) % (4 * sizeof(T)) == 0 && stride % 4 == 0 && cols % 4 == 0;
}
template <class T>
bool IsVec4Aligned(const Matrix<T>& x) {
  return !x || IsVec4Aligned(x.data, x.stride, x.cols);
}

// The launch shape of element-wise kernels: block (r, b) has 4 * blockDim.x columns of row r.
inline constexpr int kVec4Threads = 256;

inline LaunchShape Vec4Grid(int32_t rows, int32_t cols) {
  const uint32_t threads = cols > 4 * 128 ? kVec4Threads : 128;
  const uint32_t per_block = 4 * threads;
  return {
      .grid = dim3(static_cast<uint32_t>(rows), (static_cast<uint32_t>(cols) + per_block - 1) / per_block),
      .block = dim3(threads)};
}

// grid.x of a kernel in which blocks_per_row blocks share a row, and take every gridDim.x-th row. If the row
// count is on the device, `rows` may be many times that count, so the grid is no larger than the device runs
// at once.
inline uint32_t BlocksForRows(Stream& stream, int32_t rows, uint32_t blocks_per_row,
                              const int32_t* row_count) {
  const uint32_t most = static_cast<uint32_t>(rows);
  if (row_count == nullptr) return most;
  constexpr int kPerMultiprocessor = 8;  // of 256 threads
  const int resident = kPerMultiprocessor * static_cast<CudaStream&>(stream).multiprocessor_count();
  return std::min(most, std::max(static_cast<uint32_t>(resident) / blocks_per_row, 1u));
}

__device__ __forceinline__ int32_t FirstColumnOfThread() {
  return static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x) * 4;
}

}  // namespace foredraft::cuda
