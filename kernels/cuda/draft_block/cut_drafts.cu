// One block, because every seat's cut depends on all seats' drafts: B * K chances, each compared with all
// others.

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/rules/cut_drafts.h"

namespace foredraft::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) CutDraftsKernel(const __grid_constant__ CutDraftsParams p) {
  GridDependencySync();
  const int32_t first = static_cast<int32_t>(threadIdx.x);
  for (int32_t row = first; row < p.row_count; row += kThreads) MakeIdle(p, row);
  for (int32_t seat = first; seat < p.bucket; seat += kThreads) SetChances(p, seat);
  __syncthreads();
  const int32_t draft_rows = DraftRows(p);
  for (int32_t seat = first; seat < p.bucket; seat += kThreads) CutSeat(p, seat, draft_rows);
  __syncthreads();
  for (int32_t seat = first; seat < p.bucket; seat += kThreads) PlaceSeat(p, seat);
}

}  // namespace

void CutDrafts(Stream& stream, const CutDraftsParams& p) {
  CHECK_GE(p.row_count, p.bucket);
  Launch(stream, CutDraftsKernel, {.grid = dim3(1), .block = dim3(kThreads)}, p);
}

}  // namespace foredraft::cuda
