#include "kernels/rules/cut_drafts.h"

#include "base/check.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {

void CutDrafts(const CpuContext&, const CutDraftsParams& p) {
  CHECK_GE(p.row_count, p.bucket);
  for (int32_t seat = 0; seat < p.bucket; ++seat) SetChances(p, seat);
  const int32_t draft_rows = DraftRows(p);
  for (int32_t seat = 0; seat < p.bucket; ++seat) CutSeat(p, seat, draft_rows);
  for (int32_t seat = 0; seat < p.bucket; ++seat) PlaceSeat(p, seat);
  for (int32_t row = 0; row < p.row_count; ++row) MakeIdle(p, row);
}

}  // namespace foredraft::cpu
