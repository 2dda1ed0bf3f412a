#ifndef FOREDRAFT_ENGINE_SLOT_STATE_H_
#define FOREDRAFT_ENGINE_SLOT_STATE_H_

// The device truth of the running sequences (kernels/slot_arrays.h), their block tables and boundaries, and
// how admissions, deltas and swaps write them. Owner: the executor. Thread: the executor's.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/slot_arrays.h"
#include "scheduler/plan.h"

namespace foredraft {

// Everything of a slot but its blocks, in host memory: the other half of a swapped sequence.
struct SlotImage {
  SlotConstants constants;
  SlotProgress progress;
  SlotDrafts drafts;
  bool counts_tokens = false;
  std::vector<int32_t> output_counts;  // [V], empty unless counts_tokens
  std::vector<uint8_t> prompt_seen;    // [V], empty unless counts_tokens
  std::vector<float> boundary;         // [D], empty without MTP
};

class SlotState {
 public:
  // table_stride: block table entries per slot, for max_seq_len + 2 Kmax positions. boundary_width: 0 = no
  // MTP.
  static absl::StatusOr<SlotState> Create(Device& device, int slot_count, int vocab_size, int table_stride,
                                          int boundary_width);

  const SlotArrays& arrays() const { return arrays_; }
  const int32_t* block_tables() const { return block_tables_; }
  int table_stride() const { return table_stride_; }

  // [slots, D]: the output of level 0 at the last prompt position computed, for the next chunk.
  Matrix<float> boundaries() const { return boundaries_; }

  void Admit(Stream& stream, const SlotAdmission& admission);
  // Prompt tokens pass by: remembered for the repetition penalty.
  void CountPrompt(Stream& stream, int slot, std::span<const int32_t> ids);
  void ApplyDelta(Stream& stream, const BlockTableDelta& delta);
  void Release(Stream& stream, int slot);
  // Host memory is defined after Synchronize.
  void SwapOut(Stream& stream, int slot, SlotImage& image);
  void SwapIn(Stream& stream, int slot, const SlotImage& image);

  // The slot's request asked for logprobs.
  bool wants_logprobs(int slot) const { return wants_logprobs_[slot]; }

  // The host's copy of a block table entry.
  int block(int slot, int index) const { return host_tables_[size_t(slot) * table_stride_ + index]; }

 private:
  template <class T>
  void Write(Stream& stream, T* device, const T& value) {
    device_->CopyToDevice(stream, device, &value, sizeof(T));
  }

  Device* device_ = nullptr;
  SlotArrays arrays_;
  Matrix<float> boundaries_;
  int32_t* block_tables_ = nullptr;  // [slots, table_stride], device
  int table_stride_ = 0;
  std::vector<int32_t> host_tables_;  // the same, host
  std::vector<bool> counts_tokens_;   // [slots]
  std::vector<bool> wants_logprobs_;  // [slots]
  std::vector<int32_t> zero_counts_;  // [V]
  std::vector<uint8_t> prompt_seen_;  // [V] scratch of CountPrompt
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_SLOT_STATE_H_
