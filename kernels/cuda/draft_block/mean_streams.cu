// Bytes of a row of V4-Flash: 65,536 read, 8,192 written.

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

template <bool aligned>
__global__ void __launch_bounds__(kVec4Threads)
    MeanStreamsKernel(const __grid_constant__ MeanStreamsParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x), width = p.out.cols;
  const int32_t first = FirstColumnOfThread();
  if (first >= width) return;
  Vec4 sum = LoadVec4<aligned>(p.streams.row(r), first, width);
  for (int32_t i = 1; i < p.stream_count; ++i) {
    const Vec4 x = LoadVec4<aligned>(p.streams.row(r) + i * width, first, width);
#pragma unroll
    for (int e = 0; e < 4; ++e) sum.x[e] += x.x[e];
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) sum.x[e] = __fdiv_rn(sum.x[e], static_cast<float>(p.stream_count));
  StoreVec4<aligned>(p.out.row(r), first, width, sum);
}

}  // namespace

void MeanStreams(Stream& stream, const MeanStreamsParams& p) {
  CHECK_EQ(p.streams.cols, p.stream_count * p.out.cols);
  const bool aligned = IsVec4Aligned(p.streams.data, p.streams.stride, p.out.cols) && IsVec4Aligned(p.out);
  Launch(stream, aligned ? MeanStreamsKernel<true> : MeanStreamsKernel<false>,
         Vec4Grid(p.out.rows, p.out.cols), p);
}

}  // namespace foredraft::cuda
