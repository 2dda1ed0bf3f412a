#ifndef FOREDRAFT_KERNELS_CUDA_FOURS_H_
#define FOREDRAFT_KERNELS_CUDA_FOURS_H_

// Rows taken four adjacent columns at a time: in one load or store where the matrix allows it (`aligned`),
// else one by one up to the last column. Which thread has which columns is the same either way, and so are
// the bits.

#include <cstdint>

#include "kernels/cuda/cuda_stream.h"
#include "kernels/tensor.h"

namespace foredraft::cuda {

struct Four {
  float x[4];
};

// Columns first .. first + 3 of a row of `cols`; past its end 0.
template <bool aligned>
__device__ __forceinline__ Four LoadFour(const float* row, int32_t first, int32_t cols) {
  Four four = {};
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
__device__ __forceinline__ Four LoadFour(const bf16* row, int32_t first, int32_t cols) {
  Four four = {};
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
__device__ __forceinline__ void StoreFour(float* row, int32_t first, int32_t cols, const Four& four) {
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
__device__ __forceinline__ void StoreFour(bf16* row, int32_t first, int32_t cols, const Four& four) {
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

// Whether every row from `data` on can be taken as aligned fours.
template <class T>
bool InFours(const T* data, int64_t stride, int32_t cols) {
  return reinterpret_cast<uintptr_t>(data) % (4 * sizeof(T)) == 0 && stride % 4 == 0 && cols % 4 == 0;
}
// An absent matrix stands in nobody's way.
template <class T>
bool InFours(const Matrix<T>& x) {
  return !x || InFours(x.data, x.stride, x.cols);
}

// For kernels of a pass over rows of their own: a block has 4 * kFoursThreads columns of row blockIdx.x.
inline constexpr int kFoursThreads = 256;

inline LaunchShape FoursOfRows(int32_t rows, int32_t cols) {
  const uint32_t threads = cols > 4 * 128 ? kFoursThreads : 128;
  const uint32_t per_block = 4 * threads;
  return {
      .grid = dim3(static_cast<uint32_t>(rows), (static_cast<uint32_t>(cols) + per_block - 1) / per_block),
      .block = dim3(threads)};
}

__device__ __forceinline__ int32_t FirstColumnOfThread() {
  return static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x) * 4;
}

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_FOURS_H_
