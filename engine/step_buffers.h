#pragma once

// Device memory that carries rows into and out of a forward: ids, positions, outputs, logits. Fixed
// addresses, so that graphs can hold them; each buffer has one meaning. Owner: Rank.

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/slot_arrays.h"

namespace foredraft {

// The rows of a forward, as ops index them.
struct RowBuffers {
  int32_t* ids = nullptr;        // [capacity]
  int32_t* slots = nullptr;      // [capacity], -1 = idle
  int32_t* positions = nullptr;  // [capacity]

  RowIndex index(int rows) const { return {.slots = slots, .positions = positions, .rows = rows}; }
};

struct StepBufferShape {
  int rows = 0;          // R, of the largest forward
  int step_rows = 0;     // S, of the largest decode step: bucket * (Kmax + 1)
  int bucket = 0;        // B, the largest; no fewer than there are slots
  int output_width = 0;  // W, of Model
  int vocab_size = 0;
  int recent_len = 0;  // Kmax for Vanilla, else 0
};

struct StepBuffers {
  // Rows going into a forward, or into the choice of tokens.
  RowBuffers target;               // [R]
  RowBuffers module;               // [R]
  RowBuffers pick;                 // [B] drafts being chosen
  RowBuffers ended;                // [B] the last prompt token of each prompt that ends in this prefill
  int32_t* row_in_slot = nullptr;  // [S]
  int32_t* live_slots = nullptr;   // [B] of the decode step, then -1

  // Hidden rows.
  Matrix<float> target_output;  // [R, W] level 0
  Matrix<float> ended_output;   // [B, W] level 0 at `ended`
  Matrix<float> previous;       // [R, W] a module's input from the level below
  Matrix<float> module_output;  // [R, W] a module's output
  Matrix<float> last_output;    // [B, W] a module's output at the row that the next draft comes from
  int32_t* last_row = nullptr;  // [B] Eagle: that row's index

  // Prefill: sources and destinations of rows.
  int32_t* previous_index = nullptr;  // [R] the row of the level below whose output a row takes, or -1
  int32_t* boundary_index = nullptr;  // [R] the block whose boundary a row's output is, or -1
  int32_t* ended_index = nullptr;     // [B] the target rows at `ended`

  // Vanilla alone.
  int32_t* recent_index = nullptr;  // [S] index of a window row's hidden in the recent hiddens, or -1
  int32_t* target_index = nullptr;  // [S] its index in target_output, or -1
  int32_t* save_index = nullptr;    // [S] its new index in the recent hiddens, or -1
  Matrix<float> even_output;        // [S, W] module_output of levels 2, 4, 6: each level reads the one below
  Matrix<float> moved_recent;       // [Kmax, W] a slot's recent hiddens while they move

  // From hidden rows to tokens.
  Matrix<float> logits;                     // [S, V]
  Matrix<float> sample_scratch;             // [S, V]
  int32_t* sampled = nullptr;               // [S] the target's own tokens
  int32_t* relaxed = nullptr;               // [S] 1 where the relaxed rule may accept the next row's draft
  int32_t* draft_ids = nullptr;             // [B]
  StepOutput* outputs = nullptr;            // [B] of the decode step
  LogprobOutput* logprobs = nullptr;        // [S]
  StepOutput* first_outputs = nullptr;      // [B] of the prompts that ended
  LogprobOutput* first_logprobs = nullptr;  // [B]
};

absl::StatusOr<StepBuffers> AllocateStepBuffers(Device& device, const StepBufferShape& shape);

}  // namespace foredraft
