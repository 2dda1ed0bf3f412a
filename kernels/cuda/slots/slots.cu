// The slot ops (kernels/decode_rows.h, draft_acceptance.h, recent_rows.h).

#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/slots/slot_kernel.h"
#include "kernels/decode_rows.h"
#include "kernels/draft_acceptance.h"
#include "kernels/recent_rows.h"

namespace foredraft::cuda {
namespace {

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
