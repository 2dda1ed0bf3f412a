#pragma once

// Parameters of the slot ops: the state machine of a step (docs/speculation.md section 1), on integers only.
// kernels/ops.h has the rules and the letters in shapes.

#include <cstdint>

#include "kernels/slot_arrays.h"

namespace foredraft {

// Rows of a decode step, K + 1 per seat: ids t_p, d_1..d_v, then 0 as a legal fill; positions p..p+K.
// Rows of idle, finished or held slots and rows past v get slot -1: their results are never read. Illegal
// draft ids become 0 in `ids`. With first_rows, row j of a seat is first_rows[seat] + j, only rows j <= v
// exist, and rows that belong to no seat stay as cut_drafts wrote them.
struct DecodeRowsParams {
  int32_t* ids;               // [B * (K + 1)]
  int32_t* row_slots;         // [B * (K + 1)]
  int32_t* positions;         // [B * (K + 1)]
  int32_t* row_in_slot;       // [B * (K + 1)]
  const int32_t* live_slots;  // [B], -1 = padding
  SlotArrays slots;
  int32_t bucket;
  int32_t draft_len;             // K
  const int32_t* first_rows;     // [B], or null: seat * (K + 1)
  int32_t* row_masks = nullptr;  // [B * (K + 1)]: RowMasks::of_row; null: no slot is constrained
};

// Verification under slots.rule, clamp, stop, advance (docs/speculation.md section 1, steps 2-4). Compares
// draft ids as stored (an illegal one never matches). A slot with given tokens emits these, and no draft
// counts as verified. A row without a usable target token ends the step before that row, and ends the
// sequence. A constrained slot ends its step after the token that takes it behind its gate; behind the gate
// acceptance is strict. A held slot emits nothing and stays as it is. Updates progress and output_counts,
// zeroes draft_count and given_count, writes one StepOutput per seat. first_rows is as in decode_rows.
struct VerifyDraftsParams {
  StepOutput* outputs;        // [B]
  const int32_t* target_ids;  // [B * (K + 1)]: g_j
  const int32_t* relaxed;     // [B * (K + 1)]: 1 = row j may accept d_{j+1} in the thinking phase
  const int32_t* live_slots;  // [B]
  SlotArrays slots;
  int32_t bucket;
  int32_t draft_len;          // K
  const int32_t* first_rows;  // [B], or null: seat * (K + 1)
};

// Accepts the first token after a prompt's last chunk: the sampled token t_m of slot slot_ids[i] becomes
// last_token, length = m, and stop ids and length_limit are applied. Writes one StepOutput per prompt
// (emitted_count 1, drafts_verified 0). Without a usable token the sequence ends at length m and emits none.
struct AcceptFirstTokenParams {
  StepOutput* outputs;      // [count]
  const int32_t* tokens;    // [count]
  const int32_t* slot_ids;  // [count]
  SlotArrays slots;
  int32_t count;
};

// ---- drafting ----

// What a step or a prefill emitted, as rows of an MTP module: K + 1 rows per seat, ids e_0..e_K (the emitted
// ids, then 0), positions p+1..p+K+1; the hidden of row j is the target's row j. Rows past n - 1 and rows of
// padding (n = 0) get slot -1, so they are not cached. last_row[i] = the row of e_{n-1}, which draft 1 comes
// from; for padding, the seat's first row.
struct EmittedRowsParams {
  int32_t* ids;               // [B * (K + 1)]
  int32_t* row_slots;         // [B * (K + 1)]
  int32_t* positions;         // [B * (K + 1)]
  int32_t* last_row;          // [B]
  const StepOutput* outputs;  // [B]
  int32_t bucket;
  int32_t draft_len;  // K
  int32_t level;      // of the module: rows at lower positions get slot -1
};

// Lays out the next recycled forward, one row per seat: id = the last draft; slot -1 for padding and for
// slots that emitted nothing or are finished.
struct NextDraftRowsParams {
  int32_t* ids;               // [B]
  int32_t* row_slots;         // [B]
  int32_t* positions;         // [B]
  const int32_t* draft_ids;   // [B]: draft i
  const StepOutput* outputs;  // [B]
  int32_t bucket;
  int32_t draft_index;  // i: position = length + i, the position of draft i
};

// drafts.tokens[draft_index - 1] = draft_ids[seat], draft_count = draft_index, for seats whose slot is
// active and not finished.
struct StoreDraftsParams {
  const int32_t* draft_ids;   // [B]
  const StepOutput* outputs;  // [B]: has the slot; emitted_count 0 = skip
  SlotArrays slots;
  int32_t bucket;
  int32_t draft_index;  // 1..K
};

// A slot's recent tokens as rows of module 1 (docs/speculation.md section 4): W = Kmax + 1 rows per seat
// at positions P-Kmax..P; advances the slots' recent ids to P. Rows below position 1 and rows of
// padding get slot -1. A row's hidden comes from the recent hiddens or from the target's rows of this step;
// the index not used is -1.
struct RecentRowsParams {
  int32_t* ids;               // [B * W]
  int32_t* row_slots;         // [B * W]
  int32_t* positions;         // [B * W]
  int32_t* recent_index;      // [B * W]: slot * Kmax + index, or -1
  int32_t* target_index;      // [B * W]: seat * (K + 1) + row, or -1
  int32_t* save_index;        // [B * W]: index in the recent hiddens where the row's hidden goes, or -1
  int32_t* recent_ids;        // [slots, Kmax]: tokens P-Kmax+1..P, updated
  const StepOutput* outputs;  // [B]
  int32_t bucket;
  int32_t draft_len;  // K of the step
  int32_t max_draft_len;
};

// The recent rows of module `level` >= 2: positions P-Kmax+level-1..P+level-1. Ids past P are the slot's
// stored drafts; rows without a draft yet get slot -1.
struct RecentLevelRowsParams {
  int32_t* ids;               // [B * W]
  int32_t* row_slots;         // [B * W]
  int32_t* positions;         // [B * W]
  const int32_t* recent_ids;  // [slots, Kmax]
  const StepOutput* outputs;  // [B]
  SlotArrays slots;
  int32_t bucket;
  int32_t max_draft_len;
  int32_t level;
};

// Appends a prompt's first token to the recent ids, which shift by one.
struct AppendRecentParams {
  int32_t* recent_ids;        // [slots, Kmax]
  const StepOutput* outputs;  // [count]
  int32_t count;
  int32_t max_draft_len;
};

// blocks[i] = the history block whose last position row i has; -1 for rows within a block, for idle rows and
// for rows whose block is scratch.
struct BorderBlocksParams {
  int32_t* blocks;              // [count]
  const int32_t* row_slots;     // [count]
  const int32_t* positions;     // [count]
  const int32_t* block_tables;  // [slots, table_stride]: the history's
  int32_t table_stride;
  int32_t tokens_per_block;
  int32_t count;  // rows
};

// How many seats a slot op has.
template <class Params>
constexpr int32_t SeatCount(const Params& p) {
  if constexpr (requires { p.bucket; }) {
    return p.bucket;
  } else {
    return p.count;
  }
}

}  // namespace foredraft
