// The slot ops: a few integers per seat, computed on the calling thread.

#include "kernels/cpu/device/kernels.h"
#include "kernels/decode_rows.h"
#include "kernels/draft_acceptance.h"
#include "kernels/recent_rows.h"

namespace foredraft::cpu {
namespace {

template <class Params>
void RunSeats(const Params& p) {
  for (int32_t seat = 0; seat < SeatCount(p); ++seat) RunSeat(p, seat);
}

}  // namespace

void DecodeRows(const CpuContext&, const DecodeRowsParams& p) { RunSeats(p); }

void VerifyDrafts(const CpuContext&, const VerifyDraftsParams& p) {
  for (int32_t seat = 0; seat < p.bucket; ++seat) {
    CHECK(VerifySeat(p, seat)) << "slot " << p.live_slots[seat] << " runs at its length limit "
                               << p.slots.constants[p.live_slots[seat]].length_limit;
  }
}

void AcceptFirstToken(const CpuContext&, const AcceptFirstTokenParams& p) { RunSeats(p); }
void EmittedRows(const CpuContext&, const EmittedRowsParams& p) { RunSeats(p); }
void NextDraftRows(const CpuContext&, const NextDraftRowsParams& p) { RunSeats(p); }
void StoreDrafts(const CpuContext&, const StoreDraftsParams& p) { RunSeats(p); }
void RecentRows(const CpuContext&, const RecentRowsParams& p) { RunSeats(p); }
void RecentLevelRows(const CpuContext&, const RecentLevelRowsParams& p) { RunSeats(p); }
void AppendRecent(const CpuContext&, const AppendRecentParams& p) { RunSeats(p); }

}  // namespace foredraft::cpu
