// The slot ops: a few integers per bucket entry, computed on the calling thread.

#include "kernels/cpu/device/kernels.h"
#include "kernels/slot_logic.h"
#include "kernels/vanilla_logic.h"

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
void EagleRows(const CpuContext&, const EagleRowsParams& p) { RunEntries(p); }
void NextDraftRows(const CpuContext&, const NextDraftRowsParams& p) { RunEntries(p); }
void StoreDrafts(const CpuContext&, const StoreDraftsParams& p) { RunEntries(p); }
void VanillaRows(const CpuContext&, const VanillaRowsParams& p) { RunEntries(p); }
void VanillaLevelRows(const CpuContext&, const VanillaLevelRowsParams& p) { RunEntries(p); }
void AppendRecent(const CpuContext&, const AppendRecentParams& p) { RunEntries(p); }

}  // namespace foredraft::cpu
