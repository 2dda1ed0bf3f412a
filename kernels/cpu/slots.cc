// The step's own bookkeeping: a few integers per place, on the caller.

#include "kernels/cpu/kernels.h"
#include "kernels/slot_logic.h"

namespace foredraft::cpu {

void DecodeRows(const CpuContext&, const DecodeRowsParams& p) {
  for (int32_t place = 0; place < p.bucket; ++place) FillDecodeRows(p, place);
}

void VerifyDrafts(const CpuContext&, const VerifyDraftsParams& p) {
  for (int32_t place = 0; place < p.bucket; ++place) {
    CHECK(VerifyPlace(p, place)) << "slot " << p.live_slots[place] << " runs at its length limit "
                                 << p.slots.constants[p.live_slots[place]].length_limit;
  }
}

void AcceptFirstToken(const CpuContext&, const AcceptFirstTokenParams& p) {
  for (int32_t i = 0; i < p.count; ++i) AcceptFirst(p, i);
}

void EagleRows(const CpuContext&, const EagleRowsParams& p) {
  for (int32_t place = 0; place < p.bucket; ++place) FillEagleRows(p, place);
}

void NextDraftRows(const CpuContext&, const NextDraftRowsParams& p) {
  for (int32_t place = 0; place < p.bucket; ++place) FillNextDraftRow(p, place);
}

void StoreDrafts(const CpuContext&, const StoreDraftsParams& p) {
  for (int32_t place = 0; place < p.bucket; ++place) StoreDraft(p, place);
}

}  // namespace foredraft::cpu
