// The slot ops (kernels/decode_rows.h, draft_acceptance.h, recent_rows.h), a thread per seat. Each
// seat is a chain of dependent loads, so only latency matters: small blocks spread the warps over the
// multiprocessors.

#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/decode_rows.h"
#include "kernels/draft_acceptance.h"
#include "kernels/recent_rows.h"

namespace foredraft::cuda {
namespace {

constexpr int32_t kSeatsPerBlock = 32;

LaunchShape ThreadPerSeat(int32_t seats) {
  return {.grid = dim3((seats + kSeatsPerBlock - 1) / kSeatsPerBlock), .block = dim3(kSeatsPerBlock)};
}

__device__ __forceinline__ int32_t SeatOfThread() {
  return static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
}

template <class Params>
__global__ void SlotKernel(const __grid_constant__ Params p) {
  GridDependencySync();
  if (SeatOfThread() < SeatCount(p)) RunSeat(p, SeatOfThread());
}

template <class Params>
void LaunchSlotKernel(Stream& stream, const Params& p) {
  Launch(stream, SlotKernel<Params>, ThreadPerSeat(SeatCount(p)), p);
}

__global__ void VerifyDraftsKernel(const __grid_constant__ VerifyDraftsParams p) {
  GridDependencySync();
  // A slot that runs at its length limit breaks an invariant: the trap fails the stream, and the daemon
  // aborts.
  if (SeatOfThread() < p.bucket && !VerifySeat(p, SeatOfThread())) __trap();
}

}  // namespace

void DecodeRows(Stream& stream, const DecodeRowsParams& p) { LaunchSlotKernel(stream, p); }

void VerifyDrafts(Stream& stream, const VerifyDraftsParams& p) {
  Launch(stream, VerifyDraftsKernel, ThreadPerSeat(p.bucket), p);
}

void AcceptFirstToken(Stream& stream, const AcceptFirstTokenParams& p) { LaunchSlotKernel(stream, p); }
void EmittedRows(Stream& stream, const EmittedRowsParams& p) { LaunchSlotKernel(stream, p); }
void NextDraftRows(Stream& stream, const NextDraftRowsParams& p) { LaunchSlotKernel(stream, p); }
void StoreDrafts(Stream& stream, const StoreDraftsParams& p) { LaunchSlotKernel(stream, p); }
void RecentRows(Stream& stream, const RecentRowsParams& p) { LaunchSlotKernel(stream, p); }
void RecentLevelRows(Stream& stream, const RecentLevelRowsParams& p) { LaunchSlotKernel(stream, p); }
void AppendRecent(Stream& stream, const AppendRecentParams& p) { LaunchSlotKernel(stream, p); }

}  // namespace foredraft::cuda
