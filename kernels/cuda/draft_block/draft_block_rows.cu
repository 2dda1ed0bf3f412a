#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/slots/slot_kernel.h"
#include "kernels/rules/draft_block_rows.h"

namespace foredraft::cuda {

void DraftBlockRows(Stream& stream, const DraftBlockRowsParams& p) {
  LaunchSlotKernel<LayOutDraftBlock>(stream, p);
}

}  // namespace foredraft::cuda
