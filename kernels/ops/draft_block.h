#pragma once

// Parameters of the ops of a block drafter, which makes all drafts of a step in one forward of a block of
// rows per sequence (docs/dspark.md). kernels/ops.h has the rules and the letters in shapes; G rows of a
// block.

#include <cstdint>

#include "config/draft_calibration.h"
#include "kernels/ops/attention.h"
#include "kernels/slot_arrays.h"

namespace foredraft {

// out = the mean of a row's streams, summed in ascending order in FP32, then rounded.
struct MeanStreamsParams {
  Matrix<bf16> out;             // [R, D]
  Matrix<const float> streams;  // [R, N D]
  int32_t stream_count;         // N
};

// Lays out a block per seat: the anchor, which is the last emitted token at its position, then noise at the
// positions after it. Blocks of padding and of slots that emitted nothing or are finished get slot -1 and
// legal ids.
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

// Attention as in window_attention, without entries. The rows of the forward are blocks: block_rows rows of
// one sequence at adjacent positions. The first one is the anchor P. Every row attends the keys of the window
// at [max(0, P - window_len), P - 1] and then, in order, the keys of all rows of its block.
struct BlockAttentionParams {
  Matrix<float> out;                // [R, H d]
  Matrix<const bf16> q;             // [R, H d]
  Matrix<const uint8_t> keys;       // [R, layout.bytes()]
  PagedRows<const uint8_t> window;  // [layout.bytes()], by position
  KvRowLayout layout;               // of both; d = layout.width()
  const float* sinks;               // [H]
  RowIndex index;
  int32_t block_rows;
  int32_t head_count;
  int32_t window_len;
  float scale;
};

// The confidence in a draft, as a logit: weight . [hidden; token_rows], in FP32. The logit is clamped to
// +-kLargestConfidence, NaN to the lower end. It is written to the slots' drafts and to the outputs, for
// seats whose drafts store_drafts keeps.
struct DraftConfidenceParams {
  StepOutput* outputs;             // [B]
  Matrix<const float> hidden;      // [B, D]: of the row that the draft comes from
  Matrix<const float> token_rows;  // [B, r]: of the token before the draft
  const float* weight;             // [D + r]
  SlotArrays slots;
  int32_t bucket;
  int32_t draft_index;  // 1..K
};

// Cuts the drafts for which a step has no rows. Each running seat gets one row; the remaining rows go to the
// drafts, of all seats, with the largest chance that they and all drafts before them are accepted. That
// chance, a product of calibrated confidences, never grows along a sequence, so a seat keeps a prefix of its
// drafts; ties go to earlier drafts, then to lower seats. Sets draft_count, and first_rows so that seats lie
// one after another, and makes every row idle for decode_rows to fill. Requires that no slot has given
// tokens.
struct CutDraftsParams {
  int32_t* first_rows;                  // [B]
  int32_t* ids;                         // [row_count]
  int32_t* row_slots;                   // [row_count]
  int32_t* positions;                   // [row_count]
  int32_t* row_in_slot;                 // [row_count]
  float* chances;                       // [B * K]: scratch
  int32_t* verify_lens;                 // [B]: scratch
  const int32_t* live_slots;            // [B]
  const DraftCalibration* calibration;  // [K]
  SlotArrays slots;
  int32_t bucket;
  int32_t draft_len;  // K
  int32_t row_count;  // B..B * (K + 1)
};

}  // namespace foredraft
