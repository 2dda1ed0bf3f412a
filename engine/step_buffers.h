#ifndef FOREDRAFT_ENGINE_STEP_BUFFERS_H_
#define FOREDRAFT_ENGINE_STEP_BUFFERS_H_

// Device memory that carries rows into and out of a forward: ids, positions, outputs, logits. Fixed
// addresses, so that graphs can hold them. Owner: the executor. R = rows of the largest forward, S = rows of
// the largest decode step = largest bucket * (Kmax + 1), B = largest bucket.

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

struct StepBuffers {
  RowBuffers target;               // [R]
  RowBuffers pick;                 // [B] rows of drafts being chosen
  RowBuffers module;               // [R]
  int32_t* row_in_slot = nullptr;  // [S]
  int32_t* gather_index =
      nullptr;  // [R] where a module row's previous output comes from (Vanilla: recent hiddens)
  int32_t* boundary_index =
      nullptr;  // [R] prefill: which boundary a row's output goes to; Vanilla: from which target row
  int32_t* save_index = nullptr;  // [S] Vanilla: where a row's hidden goes in the recent ones

  Matrix<float> target_output;  // [R, D] level 0
  Matrix<float> previous;       // [R, D] what a module's rows take from the level below
  Matrix<float> module_output;  // [R, D] level 1
  Matrix<float> last_output;    // [B, D] the module's output of each place's last row

  Matrix<float> logits;               // [S, V]
  Matrix<float> sample_scratch;       // [S, V]
  int32_t* sampled = nullptr;         // [S] the target's own tokens
  int32_t* relaxed = nullptr;         // [S] rows that may accept the next row's draft under the relaxed rule
  TokenLogprobs* logprobs = nullptr;  // [S]

  int32_t* live_slots = nullptr;            // [B] of the decode step, -1 = idle place
  StepOutput* outputs = nullptr;            // [B] of the decode step
  int32_t* ended_slots = nullptr;           // [B] slots whose prompt ended in this prefill
  StepOutput* first_outputs = nullptr;      // [B] what they got
  TokenLogprobs* first_logprobs = nullptr;  // [B]
  int32_t* last_row = nullptr;              // [B]
  int32_t* draft_ids = nullptr;             // [B]
};

absl::StatusOr<StepBuffers> AllocateStepBuffers(Device& device, int row_capacity, int step_row_capacity,
                                                int place_capacity, int hidden_size, int vocab_size);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_STEP_BUFFERS_H_
