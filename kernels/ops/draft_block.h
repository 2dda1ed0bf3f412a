#pragma once

// Parameters of the ops of a block drafter, which makes all drafts of a step in one forward of a block of
// rows per sequence (docs/dspark.md). kernels/ops.h has the rules and the letters in shapes; G rows of a
// block.

#include <cstdint>

#include "kernels/ops/attention.h"
#include "kernels/slot_arrays.h"

namespace foredraft {

// out = the mean of a row's streams, summed in ascending order in FP32, then rounded.
struct MeanStreamsParams {
  Matrix<bf16> out;             // [R, D]
  Matrix<const float> streams;  // [R, N D]
  int32_t stream_count;         // N
};

// A block per seat: the last emitted token at its position, the anchor, then noise at the positions after it.
// Blocks of padding and of slots that emitted nothing or are finished get slot -1 and legal ids.
struct DraftBlockRowsParams {
  int32_t* ids;               // [B * G]
  int32_t* row_slots;         // [B * G]
  int32_t* positions;         // [B * G]
  int32_t* anchor_ids;        // [B]: ids of the blocks' first rows
  const StepOutput* outputs;  // [B]
  int32_t bucket;
  int32_t block_rows;  // G
  int32_t noise_id;
};

// Attention as in window_attention, without entries. The rows of the forward are blocks of block_rows rows of
// one sequence at adjacent positions, of which the first is the anchor P. Every row attends the keys of the
// window at [max(0, P - window_len), P - 1] and, in order, those of all rows of its block.
struct BlockAttentionParams {
  Matrix<float> out;             // [R, H d]
  Matrix<const bf16> q;          // [R, H d]
  Matrix<const bf16> keys;       // [R, d]
  PagedRows<const bf16> window;  // [d], by position
  const float* sinks;            // [H]
  RowIndex index;
  int32_t block_rows;
  int32_t head_count;
  int32_t window_len;
  float scale;
};

}  // namespace foredraft
