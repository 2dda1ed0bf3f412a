// The slot ops: a few integers per seat, computed on the calling thread.

#include "kernels/cpu/device/kernels.h"
#include "kernels/rules/decode_rows.h"
#include "kernels/rules/draft_acceptance.h"
#include "kernels/rules/recent_rows.h"

namespace foredraft::cpu {
namespace {

template <class Params>
void ForEachSeat(const Params& p, void (*rule)(const Params&, int32_t seat)) {
  for (int32_t seat = 0; seat < SeatCount(p); ++seat) rule(p, seat);
}

}  // namespace

void DecodeRows(const CpuContext&, const DecodeRowsParams& p) { ForEachSeat(p, LayOutDecodeRows); }

void VerifyDrafts(const CpuContext&, const VerifyDraftsParams& p) {
  for (int32_t seat = 0; seat < p.bucket; ++seat) {
    CHECK(VerifySeat(p, seat)) << "slot " << p.live_slots[seat] << " runs at its length limit "
                               << p.slots.constants[p.live_slots[seat]].length_limit;
  }
}

void AcceptFirstToken(const CpuContext&, const AcceptFirstTokenParams& p) {
  ForEachSeat(p, AcceptFirstTokenOf);
}
void EmittedRows(const CpuContext&, const EmittedRowsParams& p) { ForEachSeat(p, LayOutEmittedRows); }
void NextDraftRows(const CpuContext&, const NextDraftRowsParams& p) { ForEachSeat(p, LayOutNextDraftRows); }
void BorderBlocks(const CpuContext&, const BorderBlocksParams& p) { ForEachSeat(p, FindBorderBlock); }
void StoreDrafts(const CpuContext&, const StoreDraftsParams& p) { ForEachSeat(p, StoreDraft); }
void RecentRows(const CpuContext&, const RecentRowsParams& p) { ForEachSeat(p, LayOutRecentRows); }
void RecentLevelRows(const CpuContext&, const RecentLevelRowsParams& p) {
  ForEachSeat(p, LayOutRecentLevelRows);
}
void AppendRecent(const CpuContext&, const AppendRecentParams& p) { ForEachSeat(p, AppendRecentToken); }

}  // namespace foredraft::cpu
