#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/exp.h"

namespace foredraft::cuda {
namespace {

template <bool aligned>
__global__ void __launch_bounds__(kVec4Threads)
    ClampedSiluMulKernel(const __grid_constant__ ClampedSiluMulParams p) {
  GridDependencySync();
  const int32_t width = p.out.cols;
  const int32_t first = FirstColumnOfThread();
  if (first >= width) return;
  const int32_t rows = p.row_count != nullptr ? min(*p.row_count, p.out.rows) : p.out.rows;
  for (int32_t r = static_cast<int32_t>(blockIdx.x); r < rows; r += static_cast<int32_t>(gridDim.x)) {
    const Vec4 gate = LoadVec4<aligned>(p.gate_up.row(r), first, width);
    const Vec4 up = LoadVec4<aligned>(p.gate_up.row(r) + width, first, width);
    Vec4 out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Comparisons rather than fminf, which would turn NaN into the limit.
      const float g = gate.x[i] > p.limit ? p.limit : gate.x[i];
      const float u = up.x[i] > p.limit ? p.limit : (up.x[i] < -p.limit ? -p.limit : up.x[i]);
      out.x[i] = g * Sigmoid(g) * u;
    }
    StoreVec4<aligned>(p.out.row(r), first, width, out);
  }
}

}  // namespace

void ClampedSiluMul(Stream& stream, const ClampedSiluMulParams& p) {
  const bool aligned = IsVec4Aligned(p.out) && IsVec4Aligned(p.gate_up.data, p.gate_up.stride, p.out.cols);
  LaunchShape shape = Vec4Grid(p.out.rows, p.out.cols);
  shape.grid.x = BlocksForRows(stream, p.out.rows, shape.grid.y, p.row_count);
  Launch(stream, aligned ? ClampedSiluMulKernel<true> : ClampedSiluMulKernel<false>, shape, p);
}

}  // namespace foredraft::cuda
