#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/dense/rms_norm_row.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

struct RmsNormShared {
  float sums[kMaxWarps];
};

// A block per row.
template <bool aligned>
__global__ void __launch_bounds__(32 * kMaxWarps) RmsNormKernel(const __grid_constant__ RmsNormParams p) {
  GridDependencySync();
  RmsNormShared& shared = SharedStorage<RmsNormShared>();
  NormRow<aligned>(p, static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(blockDim.x), shared.sums);
}

}  // namespace

void RmsNorm(Stream& stream, const RmsNormParams& p) {
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(p.x.rows)),
                             .block = dim3(static_cast<uint32_t>(NormThreads(p.x.cols))),
                             .shared_bytes = sizeof(RmsNormShared)};
  Launch(stream, IsNormAligned(p) ? RmsNormKernel<true> : RmsNormKernel<false>, shape, p);
}

}  // namespace foredraft::cuda
