#pragma once

// Device memory for the rows that go into and come out of the target's forward, and for the way from logits
// to tokens. Addresses are fixed, so that graphs can hold them; each buffer has one meaning. A drafter has
// buffers of its own (engine/spec). Owner: Rank.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "engine/model/batch.h"
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

template <class T>
absl::Status AllocateBuffer(Device& device, int count, T*& out) {
  ASSIGN_OR_RETURN(out, device.AllocateArray<T>(count));
  return absl::OkStatus();
}
absl::Status AllocateBuffer(Device& device, int capacity, RowBuffers& rows);
absl::Status AllocateBuffer(Device& device, int rows, int cols, Matrix<float>& out);

// The rows of prompt chunks, on the host.
struct ChunkRows {
  std::vector<int32_t> ids;
  std::vector<int32_t> slots;
  std::vector<int32_t> positions;
  std::vector<PrefillSpan> spans;

  int count() const { return static_cast<int>(ids.size()); }
};

template <class T>
void Upload(Device& device, Stream& stream, const std::vector<T>& host, T* out) {
  device.CopyToDevice(stream, out, host.data(), host.size() * sizeof(T));
}
void Upload(Device& device, Stream& stream, const ChunkRows& host, const RowBuffers& out);

struct StepBufferShape {
  int rows = 0;          // R, of the largest forward
  int step_rows = 0;     // S, of the largest decode step: bucket * (Kmax + 1)
  int bucket = 0;        // B, the largest; no fewer than there are slots
  int output_width = 0;  // W: Model::output_width
  int vocab_size = 0;
};

struct StepBuffers {
  // Rows going into a forward, or into sampling.
  RowBuffers target;               // [R]
  RowBuffers ended;                // [B] the last prompt token of each prompt that ends in this prefill
  int32_t* row_in_slot = nullptr;  // [S]

  // Hidden rows.
  Matrix<float> target_output;     // [R, W] level 0
  Matrix<float> ended_output;      // [B, W] level 0 at `ended`
  int32_t* ended_index = nullptr;  // [B] the target rows at `ended`

  // From hidden rows to tokens.
  Matrix<float> logits;                     // [S, V]
  Matrix<float> sample_scratch;             // [S, V]
  int32_t* sampled = nullptr;               // [S] the target's own tokens
  int32_t* relaxed = nullptr;               // [S] 1 where the relaxed rule may accept the next row's draft
  StepOutput* outputs = nullptr;            // [B] of the decode step
  LogprobOutput* logprobs = nullptr;        // [S]
  StepOutput* first_outputs = nullptr;      // [B] the first token of each prompt that ended
  LogprobOutput* first_logprobs = nullptr;  // [B]
};

absl::StatusOr<StepBuffers> AllocateStepBuffers(Device& device, const StepBufferShape& shape);

}  // namespace foredraft
