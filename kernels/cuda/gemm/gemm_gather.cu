#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/gemm/gemm_gather.h"
#include "kernels/dtype.h"

namespace foredraft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;  // elements: 16 bytes

struct GatherParams {
  bf16* out;
  const bf16* x;
  const int32_t* x_rows;     // or null
  const int32_t* row_count;  // or null
  int64_t out_stride;
  int64_t x_stride;
  int32_t rows;
  int32_t cols;
  int32_t vectors;  // both sides are 16-byte aligned
};

// Block (r, b) copies 2048 elements of rows r, r + gridDim.x ...
__global__ void __launch_bounds__(kThreads) GatherKernel(const __grid_constant__ GatherParams p) {
  GridDependencySync();
  const int32_t rows = p.row_count != nullptr ? *p.row_count : p.rows;
  const int32_t first = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x) * kPerThread;
  for (int32_t row = static_cast<int32_t>(blockIdx.x); row < rows; row += static_cast<int32_t>(gridDim.x)) {
    const bf16* x = p.x + (p.x_rows != nullptr ? p.x_rows[row] : row) * p.x_stride;
    bf16* out = p.out + row * p.out_stride;
    if (p.vectors != 0 && first + kPerThread <= p.cols) {
      *reinterpret_cast<uint4*>(out + first) = *reinterpret_cast<const uint4*>(x + first);
    } else {
      for (int32_t i = first; i < min(first + kPerThread, p.cols); ++i) out[i] = x[i];
    }
  }
}

bool Aligned(const bf16* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % kPerThread == 0;
}

}  // namespace

void GatherRows(Stream& stream, Matrix<bf16> out, Matrix<const bf16> x, const int32_t* x_rows,
                const int32_t* row_count, int32_t rows) {
  constexpr uint32_t kPerBlock = kThreads * kPerThread;
  const uint32_t blocks = (static_cast<uint32_t>(x.cols) + kPerBlock - 1) / kPerBlock;
  const LaunchShape shape = {.grid = dim3(BlocksForRows(stream, rows, blocks, row_count), blocks),
                             .block = dim3(kThreads)};
  Launch(stream, &GatherKernel, shape,
         GatherParams{.out = out.data,
                      .x = x.data,
                      .x_rows = x_rows,
                      .row_count = row_count,
                      .out_stride = out.stride,
                      .x_stride = x.stride,
                      .rows = rows,
                      .cols = x.cols,
                      .vectors = Aligned(out.data, out.stride) && Aligned(x.data, x.stride)});
}

}  // namespace foredraft::cuda
