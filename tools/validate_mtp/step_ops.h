#pragma once

// Runs the slot ops of a decode step (kernels/ops.h) on the device, for sequences in slots 0 .. count - 1,
// all live, with strict acceptance: a step's rows, verification and drafts. One thread.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/slot_arrays.h"

namespace foredraft {

// Rows that a slot op made.
struct StepRows {
  std::vector<int32_t> ids, slots, positions;
  std::vector<int32_t> last_row;  // of emitted_rows: [count]
};

class StepOps {
 public:
  // Sequences may not grow past `positions`.
  static absl::StatusOr<StepOps> Create(Device& device, Stream& stream, int count, int vocab_size,
                                        int positions);

  // Starts sequence i at length lengths[i], without drafts; its last token is not in the cache.
  void Begin(const std::vector<int>& lengths, const std::vector<int>& last_tokens);
  // drafts: [count, K].
  void SetDrafts(const std::vector<int32_t>& drafts, int draft_len);
  std::vector<int32_t> Drafts(int draft_len);

  StepRows DecodeRows(int draft_len);
  std::vector<StepOutput> VerifyDrafts(const std::vector<int32_t>& target_ids, int draft_len);
  // These three use the outputs of the last VerifyDrafts.
  StepRows EmittedRows(int draft_len);
  StepRows NextDraftRows(const std::vector<int32_t>& draft_ids, int draft_index);
  void StoreDrafts(const std::vector<int32_t>& draft_ids, int draft_index);
  // A block of `block_rows` rows, at most kMaxDraftLen + 1, after each sequence's last emitted token.
  StepRows DraftBlockRows(int block_rows, int noise_id);

 private:
  StepOps(Device& device, Stream& stream, int count) : device_(&device), stream_(&stream), count_(count) {}

  template <class T>
  std::vector<T> Get(const T* from, size_t count);
  template <class T>
  void Put(T* to, const std::vector<T>& from);
  StepRows GetRows(int count);

  Device* device_;
  Stream* stream_;
  int count_;
  SlotArrays slots_;
  StepOutput* outputs_ = nullptr;  // [count]
  int32_t* live_ = nullptr;        // [count]
  int32_t* tokens_ = nullptr;      // [count * (kMaxDraftLen + 1)], as are the next
  int32_t *relaxed_ = nullptr, *ids_ = nullptr, *row_slots_ = nullptr, *positions_ = nullptr,
          *row_in_slot_ = nullptr, *last_row_ = nullptr;
};

}  // namespace foredraft
