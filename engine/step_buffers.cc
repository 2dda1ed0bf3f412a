#include "engine/step_buffers.h"

#include "base/status_macros.h"

namespace foredraft {
namespace {

absl::Status AllocateRows(Device& device, int capacity, RowBuffers& rows) {
  ASSIGN_OR_RETURN(rows.ids, device.AllocateArray<int32_t>(capacity));
  ASSIGN_OR_RETURN(rows.slots, device.AllocateArray<int32_t>(capacity));
  ASSIGN_OR_RETURN(rows.positions, device.AllocateArray<int32_t>(capacity));
  return absl::OkStatus();
}

absl::Status AllocateFloats(Device& device, int rows, int cols, Matrix<float>& out) {
  ASSIGN_OR_RETURN(float* const data, device.AllocateArray<float>(static_cast<size_t>(rows) * cols));
  out = Dense(data, rows, cols);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StepBuffers> AllocateStepBuffers(Device& device, int row_capacity, int step_row_capacity,
                                                int place_capacity, int hidden_size, int vocab_size) {
  StepBuffers b;
  RETURN_IF_ERROR(AllocateRows(device, row_capacity, b.target));
  RETURN_IF_ERROR(AllocateRows(device, row_capacity, b.module));
  RETURN_IF_ERROR(AllocateRows(device, place_capacity, b.pick));
  ASSIGN_OR_RETURN(b.row_in_slot, device.AllocateArray<int32_t>(step_row_capacity));
  ASSIGN_OR_RETURN(b.gather_index, device.AllocateArray<int32_t>(row_capacity));
  ASSIGN_OR_RETURN(b.boundary_index, device.AllocateArray<int32_t>(row_capacity));
  ASSIGN_OR_RETURN(b.save_index, device.AllocateArray<int32_t>(step_row_capacity));
  RETURN_IF_ERROR(AllocateFloats(device, row_capacity, hidden_size, b.target_output));
  RETURN_IF_ERROR(AllocateFloats(device, row_capacity, hidden_size, b.previous));
  RETURN_IF_ERROR(AllocateFloats(device, row_capacity, hidden_size, b.module_output));
  RETURN_IF_ERROR(AllocateFloats(device, place_capacity, hidden_size, b.last_output));
  RETURN_IF_ERROR(AllocateFloats(device, step_row_capacity, vocab_size, b.logits));
  RETURN_IF_ERROR(AllocateFloats(device, step_row_capacity, vocab_size, b.sample_scratch));
  ASSIGN_OR_RETURN(b.sampled, device.AllocateArray<int32_t>(step_row_capacity));
  ASSIGN_OR_RETURN(b.relaxed, device.AllocateArray<int32_t>(step_row_capacity));
  ASSIGN_OR_RETURN(b.logprobs, device.AllocateArray<TokenLogprobs>(step_row_capacity));
  ASSIGN_OR_RETURN(b.live_slots, device.AllocateArray<int32_t>(place_capacity));
  ASSIGN_OR_RETURN(b.outputs, device.AllocateArray<StepOutput>(place_capacity));
  ASSIGN_OR_RETURN(b.ended_slots, device.AllocateArray<int32_t>(place_capacity));
  ASSIGN_OR_RETURN(b.first_outputs, device.AllocateArray<StepOutput>(place_capacity));
  ASSIGN_OR_RETURN(b.first_logprobs, device.AllocateArray<TokenLogprobs>(place_capacity));
  ASSIGN_OR_RETURN(b.last_row, device.AllocateArray<int32_t>(place_capacity));
  ASSIGN_OR_RETURN(b.draft_ids, device.AllocateArray<int32_t>(place_capacity));
  return b;
}

}  // namespace foredraft
