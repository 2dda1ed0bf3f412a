#pragma once

// The slot op draft_block_rows for one seat of the bucket, shared by the backends as those of
// kernels/rules/decode_rows.h are.

#include "kernels/ops/draft_block.h"

namespace foredraft {

constexpr void LayOutDraftBlock(const DraftBlockRowsParams& p, int32_t seat) {
  const StepOutput& output = p.outputs[seat];
  const bool drafts = output.slot >= 0 && output.emitted_count > 0 && output.finished == 0;
  const int32_t anchor = drafts ? output.token_ids[output.emitted_count - 1] : 0;
  p.anchor_ids[seat] = anchor;
  for (int32_t j = 0; j < p.block_rows; ++j) {
    const int32_t row = seat * p.block_rows + j;
    p.ids[row] = j == 0 ? anchor : p.noise_id;
    p.row_slots[row] = drafts ? output.slot : -1;
    p.positions[row] = (drafts ? output.length : 0) + j;
  }
}

}  // namespace foredraft
