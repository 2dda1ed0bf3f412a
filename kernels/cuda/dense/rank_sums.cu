// tree_sum and merge_columns make rows from parts that the ranks of a tensor group computed. take_columns
// puts columns in another order.

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

template <int count, bool aligned>
__global__ void __launch_bounds__(kVec4Threads) TreeSumKernel(const __grid_constant__ TreeSumParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t first = FirstColumnOfThread();
  const int32_t columns = p.out.cols;
  if (first >= columns) return;
  Vec4 parts[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    parts[i] = LoadVec4<aligned>(p.parts.row(static_cast<int64_t>(i) * p.out.rows + r), first, columns);
  }
#pragma unroll
  for (int step = 1; step < count; step *= 2) {
#pragma unroll
    for (int i = 0; i < count; i += 2 * step) {
#pragma unroll
      for (int c = 0; c < 4; ++c) parts[i].x[c] = __fadd_rn(parts[i].x[c], parts[i + step].x[c]);
    }
  }
  if (p.bias != nullptr) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (first + c < columns) parts[0].x[c] = __fadd_rn(parts[0].x[c], p.bias[first + c]);
    }
  }
  StoreVec4<aligned>(p.out.row(r), first, columns, parts[0]);
}

// A thread has one column, because slices of any width lie side by side.
__global__ void __launch_bounds__(kVec4Threads)
    MergeColumnsKernel(const __grid_constant__ MergeColumnsParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t column = static_cast<int32_t>(blockIdx.y * kVec4Threads + threadIdx.x);
  if (column >= p.out.cols) return;
  const int64_t slice = column / p.parts.cols;
  p.out.row(r)[column] = p.parts.row(slice * p.out.rows + r)[column % p.parts.cols];
}

__global__ void __launch_bounds__(kVec4Threads)
    TakeColumnsKernel(const __grid_constant__ TakeColumnsParams p) {
  GridDependencySync();
  const int32_t c = static_cast<int32_t>(blockIdx.y * kVec4Threads + threadIdx.x);
  if (c >= p.out.cols) return;
  const int32_t column = p.index[c];
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  p.out.row(r)[c] = column < 0 ? -INFINITY : p.x.row(r)[column];
}

template <int count>
void LaunchTreeSum(Stream& stream, const TreeSumParams& p) {
  const bool aligned = IsVec4Aligned(p.out) && IsVec4Aligned(p.parts);
  Launch(stream, aligned ? TreeSumKernel<count, true> : TreeSumKernel<count, false>,
         Vec4Grid(p.out.rows, p.out.cols), p);
}

}  // namespace

void TreeSum(Stream& stream, const TreeSumParams& p) {
  switch (p.part_count) {
    case 2:
      return LaunchTreeSum<2>(stream, p);
    case 4:
      return LaunchTreeSum<4>(stream, p);
    default:
      CHECK_EQ(p.part_count, 8);
      return LaunchTreeSum<8>(stream, p);
  }
}

void MergeColumns(Stream& stream, const MergeColumnsParams& p) {
  const auto blocks = static_cast<uint32_t>((p.out.cols + kVec4Threads - 1) / kVec4Threads);
  Launch(stream, MergeColumnsKernel,
         {.grid = dim3(static_cast<uint32_t>(p.out.rows), blocks), .block = dim3(kVec4Threads)}, p);
}

void TakeColumns(Stream& stream, const TakeColumnsParams& p) {
  const auto blocks = static_cast<uint32_t>((p.out.cols + kVec4Threads - 1) / kVec4Threads);
  Launch(stream, TakeColumnsKernel,
         {.grid = dim3(static_cast<uint32_t>(p.out.rows), blocks), .block = dim3(kVec4Threads)}, p);
}

}  // namespace foredraft::cuda
