// The slot ops: a few integers per bucket entry, computed on the calling thread.

#include "kernels/cpu/device/kernels.h"
#include "kernels/decode_rows.h"
#include "kernels/draft_acceptance.h"
#include "kernels/recent_rows.h"

namespace foredraft::cpu {
namespace {

template <class Params>
void RunEntries(const Params& p) {
  for (int32_t entry = 0; entry < EntryCount(p); ++entry) RunEntry(p, entry);
}

}  // namespace

void DecodeRows(const CpuContext&, const DecodeRowsParams& p) { RunEntries(p); }

void VerifyDrafts(const CpuContext&, const VerifyDraftsParams& p) {
  for (int32_t entry = 0; entry < p.bucket; ++entry) {
    CHECK(VerifyEntry(p, entry)) << "slot " << p.live_slots[entry] << " runs at its length limit "
                                 << p.slots.constants[p.live_slots[entry]].length_limit;
  }
}

void AcceptFirstToken(const CpuContext&, const AcceptFirstTokenParams& p) { RunEntries(p); }
void EmittedRows(const CpuContext&, const EmittedRowsParams& p) { RunEntries(p); }
void NextDraftRows(const CpuContext&, const NextDraftRowsParams& p) { RunEntries(p); }
void StoreDrafts(const CpuContext&, const StoreDraftsParams& p) { RunEntries(p); }
void RecentRows(const CpuContext&, const RecentRowsParams& p) { RunEntries(p); }
void RecentLevelRows(const CpuContext&, const RecentLevelRowsParams& p) { RunEntries(p); }
void AppendRecent(const CpuContext&, const AppendRecentParams& p) { RunEntries(p); }

}  // namespace foredraft::cpu
