#include "kernels/rules/draft_block_rows.h"

#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {

void DraftBlockRows(const CpuContext&, const DraftBlockRowsParams& p) {
  for (int32_t seat = 0; seat < p.bucket; ++seat) LayOutDraftBlock(p, seat);
}

}  // namespace foredraft::cpu
