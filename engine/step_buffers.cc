#include "engine/step_buffers.h"

#include "base/status_macros.h"

namespace foredraft {
namespace {

template <class T>
absl::Status Allocate(Device& device, int count, T*& out) {
  ASSIGN_OR_RETURN(out, device.AllocateArray<T>(count));
  return absl::OkStatus();
}

absl::Status Allocate(Device& device, int capacity, RowBuffers& rows) {
  RETURN_IF_ERROR(Allocate(device, capacity, rows.ids));
  RETURN_IF_ERROR(Allocate(device, capacity, rows.slots));
  return Allocate(device, capacity, rows.positions);
}

absl::Status Allocate(Device& device, int rows, int cols, Matrix<float>& out) {
  ASSIGN_OR_RETURN(float* const data, device.AllocateArray<float>(static_cast<size_t>(rows) * cols));
  out = Dense(data, rows, cols);
  return absl::OkStatus();
}

absl::Status AllocateVanilla(Device& device, const StepBufferShape& shape, StepBuffers& b) {
  RETURN_IF_ERROR(Allocate(device, shape.step_rows, b.recent_index));
  RETURN_IF_ERROR(Allocate(device, shape.step_rows, b.target_index));
  RETURN_IF_ERROR(Allocate(device, shape.step_rows, b.save_index));
  RETURN_IF_ERROR(Allocate(device, shape.step_rows, shape.output_width, b.even_output));
  return Allocate(device, shape.recent_len, shape.output_width, b.moved_recent);
}

}  // namespace

absl::StatusOr<StepBuffers> AllocateStepBuffers(Device& device, const StepBufferShape& shape) {
  const int width = shape.output_width;
  StepBuffers b;
  RETURN_IF_ERROR(Allocate(device, shape.rows, b.target));
  RETURN_IF_ERROR(Allocate(device, shape.rows, b.module));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, b.pick));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, b.ended));
  RETURN_IF_ERROR(Allocate(device, shape.step_rows, b.row_in_slot));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, b.live_slots));
  RETURN_IF_ERROR(Allocate(device, shape.rows, width, b.target_output));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, width, b.ended_output));
  RETURN_IF_ERROR(Allocate(device, shape.rows, width, b.previous));
  RETURN_IF_ERROR(Allocate(device, shape.rows, width, b.module_output));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, width, b.last_output));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, b.last_row));
  RETURN_IF_ERROR(Allocate(device, shape.rows, b.previous_index));
  RETURN_IF_ERROR(Allocate(device, shape.rows, b.boundary_index));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, b.ended_index));
  if (shape.recent_len > 0) RETURN_IF_ERROR(AllocateVanilla(device, shape, b));
  RETURN_IF_ERROR(Allocate(device, shape.step_rows, shape.vocab_size, b.logits));
  RETURN_IF_ERROR(Allocate(device, shape.step_rows, shape.vocab_size, b.sample_scratch));
  RETURN_IF_ERROR(Allocate(device, shape.step_rows, b.sampled));
  RETURN_IF_ERROR(Allocate(device, shape.step_rows, b.relaxed));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, b.draft_ids));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, b.outputs));
  RETURN_IF_ERROR(Allocate(device, shape.step_rows, b.logprobs));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, b.first_outputs));
  RETURN_IF_ERROR(Allocate(device, shape.bucket, b.first_logprobs));
  return b;
}

}  // namespace foredraft
