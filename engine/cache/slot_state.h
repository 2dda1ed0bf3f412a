#pragma once

// State of the running sequences on the device: what every step reads (kernels/slot_arrays.h), the rows
// that parts of the engine registered (engine/cache/slot_row.h), and block tables in every cache group; and
// how admissions, deltas and swaps write them. Owner: Rank. Thread: the one that submits plans.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/block_tables.h"
#include "engine/cache/host_frames.h"
#include "engine/cache/kv_cache.h"
#include "engine/cache/slot_row.h"
#include "kernels/device.h"
#include "kernels/slot_arrays.h"
#include "scheduler/plan.h"

namespace foredraft {

// The part of a slot's state that only the host has.
struct HostSlotState {
  bool counts_tokens = false;
  bool wants_logprobs = false;
  bool constrained = false;
  bool needs_first_mask = false;     // the grammar holds from the first token on
  bool greedy = true;                // PlainArgmax
  std::vector<uint8_t> prompt_seen;  // [V], empty unless counts_tokens: SlotArrays::prompt_seen's row
  // One element per registered row, in their order; empty where the row is not on the host.
  std::vector<std::vector<int32_t>> rows;
};

struct SlotStateShape {
  int slot_count = 0;
  int vocab_size = 0;
  // Block table entries per slot in each cache group, for every position that a sequence may reach.
  std::vector<int> table_strides;
  std::vector<SlotRow> rows;  // registered
  bool poison = false;        // an admission fills the slot's registered rows with NaN
};

class SlotState {
 public:
  static absl::StatusOr<SlotState> Create(Device& device, const SlotStateShape& shape);

  const SlotArrays& arrays() const { return arrays_; }
  // The block tables of each cache group.
  std::vector<CacheGroupTable> block_tables() const;

  int slot_count() const { return shape_.slot_count; }

  // The registered rows of this name, [slots, width]. Their address is fixed.
  Matrix<float> rows(std::string_view name) const;
  int32_t* int_rows(std::string_view name) const;
  // The slot's row on the host, [width].
  std::vector<int32_t>& host_row(std::string_view name, int slot);

  // Sets the acceptance rule for all later ops of the stream.
  void SetRule(Stream& stream, const AcceptanceRule& rule);
  void Admit(Stream& stream, const SlotAdmission& admission);
  // Marks prompt tokens as seen, for the repetition penalty.
  void CountPrompt(Stream& stream, int slot, std::span<const int32_t> ids);
  // Copies the boundary of `block` to the slot: its sequence begins after a cached prefix whose last history
  // block is `block`.
  void TakeBoundary(Stream& stream, int slot, const KvCache& cache, int block);
  void Release(Stream& stream, int slot);

  // Changes the host's block tables; FlushTables brings the changes to the device.
  void ApplyDelta(const BlockTableDelta& delta);
  void FlushTables(Stream& stream);

  // Bytes of a slot's image without its blocks and HostSlotState.
  static size_t ImageBytes(const SlotStateShape& shape);
  // `image` is written, and read, in stream order.
  HostSlotState SwapOut(Stream& stream, int slot, const HostFrames& image);
  void SwapIn(Stream& stream, int slot, const HostFrames& image, HostSlotState state);

  // Whether the slot's request wants logprobs.
  bool wants_logprobs(int slot) const { return host_[slot].wants_logprobs; }
  bool greedy(int slot) const { return host_[slot].greedy; }
  bool constrained(int slot) const { return host_[slot].constrained; }
  bool needs_first_mask(int slot) const { return host_[slot].needs_first_mask; }

  // Where the masks of each step are written (engine/parts/step_masks.h).
  void SetStepMasks(const SlotStepMasks* step_masks) { arrays_.step_masks = step_masks; }

  // The host's copy of an entry of the history's block table.
  int history_block(int slot, int index) const { return tables_[0].block(slot, index); }

 private:
  template <class T>
  void Write(Stream& stream, T* device, const T& value) {
    device_->CopyToDevice(stream, device, &value, sizeof(T));
  }

  // One of a slot's arrays on the device, and its offset in the image.
  struct ImagePart {
    void* device;
    size_t bytes;
    size_t offset;
  };
  std::vector<ImagePart> ImageParts(int slot, bool counts_tokens) const;
  size_t IndexOf(std::string_view name) const;  // of a registered row
  void PoisonRow(Stream& stream, int slot, size_t index);
  template <class Copy>
  void ForEachPiece(int slot, bool counts_tokens, const HostFrames& image, const Copy& copy) const;

  Device* device_ = nullptr;
  SlotArrays arrays_;
  AcceptanceRule* rule_ = nullptr;  // arrays_.rule, for writing
  SlotStateShape shape_;
  std::vector<void*> registered_;     // [slots, width] of each registered row
  std::vector<BlockTables> tables_;   // of each cache group
  std::vector<HostSlotState> host_;   // [slots]
  std::vector<int32_t> zero_counts_;  // [V]
};

}  // namespace foredraft
