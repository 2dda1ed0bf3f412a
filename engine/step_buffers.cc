#include "engine/step_buffers.h"

namespace foredraft {

absl::Status AllocateBuffer(Device& device, int capacity, RowBuffers& rows) {
  RETURN_IF_ERROR(AllocateBuffer(device, capacity, rows.ids));
  RETURN_IF_ERROR(AllocateBuffer(device, capacity, rows.slots));
  return AllocateBuffer(device, capacity, rows.positions);
}

absl::Status AllocateBuffer(Device& device, int rows, int cols, Matrix<float>& out) {
  ASSIGN_OR_RETURN(float* const data, device.AllocateArray<float>(static_cast<size_t>(rows) * cols));
  out = Dense(data, rows, cols);
  return absl::OkStatus();
}

void Upload(Device& device, Stream& stream, const ChunkRows& host, const RowBuffers& out) {
  Upload(device, stream, host.ids, out.ids);
  Upload(device, stream, host.slots, out.slots);
  Upload(device, stream, host.positions, out.positions);
}

absl::StatusOr<StepBuffers> AllocateStepBuffers(Device& device, const StepBufferShape& shape) {
  const int width = shape.output_width;
  StepBuffers b;
  RETURN_IF_ERROR(AllocateBuffer(device, shape.rows, b.target));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.bucket, b.ended));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.step_rows, b.row_in_slot));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.rows, width, b.target_output));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.bucket, width, b.ended_output));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.bucket, b.ended_index));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.step_rows, shape.vocab_size, b.logits));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.step_rows, shape.vocab_size, b.sample_scratch));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.step_rows, b.sampled));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.step_rows, b.relaxed));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.bucket, b.outputs));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.step_rows, b.logprobs));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.bucket, b.first_outputs));
  RETURN_IF_ERROR(AllocateBuffer(device, shape.bucket, b.first_logprobs));
  return b;
}

}  // namespace foredraft
