// A block per seat. Bytes of a seat of V4-Flash: 17,408 of its row and the token's, and another 17,408 of
// the weight.

#include "kernels/cuda/common/block_reduce.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/rules/draft_confidence.h"

namespace foredraft::cuda {
namespace {

constexpr int kThreads = 256;

struct ConfidenceShared {
  float sums[kMaxWarps];
};

__device__ __forceinline__ float PartOfDot(const float* x, const float* y, int32_t count) {
  float sum = 0.0f;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) sum += x[i] * y[i];
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    DraftConfidenceKernel(const __grid_constant__ DraftConfidenceParams p) {
  GridDependencySync();
  const int32_t seat = static_cast<int32_t>(blockIdx.x), hidden = p.hidden.cols;
  const float part = PartOfDot(p.hidden.row(seat), p.weight, hidden) +
                     PartOfDot(p.token_rows.row(seat), p.weight + hidden, p.token_rows.cols);
  const float logit = BlockReduce(part, Sum(), SharedStorage<ConfidenceShared>().sums);
  if (threadIdx.x == 0) StoreConfidence(p, seat, logit);
}

}  // namespace

void DraftConfidence(Stream& stream, const DraftConfidenceParams& p) {
  Launch(stream, DraftConfidenceKernel,
         {.grid = dim3(p.bucket), .block = dim3(kThreads), .shared_bytes = sizeof(ConfidenceShared)}, p);
}

}  // namespace foredraft::cuda
