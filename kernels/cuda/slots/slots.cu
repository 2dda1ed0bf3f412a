// The slot ops (kernels/rules/decode_rows.h, draft_acceptance.h, recent_rows.h).

#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/slots/slot_kernel.h"
#include "kernels/rules/decode_rows.h"
#include "kernels/rules/draft_acceptance.h"
#include "kernels/rules/recent_rows.h"

namespace foredraft::cuda {
namespace {

__global__ void VerifyDraftsKernel(const __grid_constant__ VerifyDraftsParams p) {
  GridDependencySync();
  // A slot that runs at its length limit breaks an invariant: the trap fails the stream, and the daemon
  // aborts.
  if (SeatOfThread() < p.bucket && !VerifySeat(p, SeatOfThread())) __trap();
}

}  // namespace

void DecodeRows(Stream& stream, const DecodeRowsParams& p) { LaunchSlotKernel<LayOutDecodeRows>(stream, p); }

void VerifyDrafts(Stream& stream, const VerifyDraftsParams& p) {
  Launch(stream, VerifyDraftsKernel, ThreadPerSeat(p.bucket), p);
}

void AcceptFirstToken(Stream& stream, const AcceptFirstTokenParams& p) {
  LaunchSlotKernel<AcceptFirstTokenOf>(stream, p);
}
void EmittedRows(Stream& stream, const EmittedRowsParams& p) {
  LaunchSlotKernel<LayOutEmittedRows>(stream, p);
}
void NextDraftRows(Stream& stream, const NextDraftRowsParams& p) {
  LaunchSlotKernel<LayOutNextDraftRows>(stream, p);
}
void BorderBlocks(Stream& stream, const BorderBlocksParams& p) {
  LaunchSlotKernel<FindBorderBlock>(stream, p);
}
void StoreDrafts(Stream& stream, const StoreDraftsParams& p) { LaunchSlotKernel<StoreDraft>(stream, p); }
void RecentRows(Stream& stream, const RecentRowsParams& p) { LaunchSlotKernel<LayOutRecentRows>(stream, p); }
void RecentLevelRows(Stream& stream, const RecentLevelRowsParams& p) {
  LaunchSlotKernel<LayOutRecentLevelRows>(stream, p);
}
void AppendRecent(Stream& stream, const AppendRecentParams& p) {
  LaunchSlotKernel<AppendRecentToken>(stream, p);
}

}  // namespace foredraft::cuda
