#pragma once

// State of the running sequences on the device (kernels/slot_arrays.h), their block tables in every cache
// group and boundaries, and how admissions, deltas and swaps write them. Owner: Rank. Thread: the one that
// submits plans.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/block_tables.h"
#include "engine/engine_options.h"
#include "engine/host_frames.h"
#include "engine/kv_cache.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "kernels/slot_arrays.h"
#include "scheduler/plan.h"

namespace foredraft {

// The part of a slot's state that only the host has.
struct SlotFacts {
  bool counts_tokens = false;
  bool wants_logprobs = false;
  bool greedy = true;                      // neither of the two, and temperature 0
  std::vector<uint8_t> prompt_seen;        // [V], empty unless counts_tokens: SlotArrays::prompt_seen's row
  std::vector<int32_t> recent_prompt_ids;  // [Kmax], empty unless Vanilla: the last prompt tokens computed
};

struct SlotStateShape {
  int slot_count = 0;
  int vocab_size = 0;
  // Of each cache group: block table entries per slot, for max_seq_len + 2 Kmax positions.
  std::vector<int> table_strides;
  int output_width = 0;  // Model::output_width
  int level_count = 0;   // MTP modules in use, M; 0 = no boundaries
  int recent_len = 0;    // Kmax for Vanilla, else 0

  static SlotStateShape Of(const EngineOptions& options, const ModelConfig& config);
};

class SlotState {
 public:
  static absl::StatusOr<SlotState> Create(Device& device, const SlotStateShape& shape);

  const SlotArrays& arrays() const { return arrays_; }
  // Of each cache group.
  std::vector<GroupTable> block_tables() const;

  // [slots, output_width]: the output of `level` (0..M-1) at the last prompt position computed, for the next
  // chunk.
  Matrix<float> boundaries(int level) const {
    return {boundaries_.data + int64_t{level} * shape_.output_width, shape_.slot_count, shape_.output_width,
            int64_t{shape_.level_count} * shape_.output_width};
  }
  int level_count() const { return shape_.level_count; }

  // Vanilla (docs/speculation.md section 4): tokens p-Kmax+1..p and target hiddens p-Kmax..p-1. While the
  // prompt is computed up to position b, tokens b-Kmax..b-1 and hiddens b-Kmax..b-1.
  int32_t* recent_ids() const { return recent_ids_; }               // [slots, Kmax]
  Matrix<float> recent_hiddens() const { return recent_hiddens_; }  // [slots * Kmax, output_width]
  int recent_len() const { return shape_.recent_len; }

  // Sets the acceptance rule for all later ops of the stream.
  void SetRule(Stream& stream, const AcceptanceRule& rule);
  void Admit(Stream& stream, const SlotAdmission& admission);
  // Marks prompt tokens as seen, for the repetition penalty.
  void CountPrompt(Stream& stream, int slot, std::span<const int32_t> ids);
  // Vanilla: appends `ids`, which a prefill computes, to the slot's recent prompt tokens. Returns the last
  // Kmax of them, which the caller copies to recent_ids().
  const std::vector<int32_t>& PassRecentPrompt(int slot, std::span<const int32_t> ids);
  // The slot's next step emits these tokens (SlotDrafts::given_count).
  void Give(Stream& stream, const GivenTokens& given);
  void Release(Stream& stream, int slot);

  // Changes the host's block tables; FlushTables brings the changes to the device.
  void ApplyDelta(const BlockTableDelta& delta);
  void FlushTables(Stream& stream);

  // Bytes of a slot's image without its blocks and facts.
  static size_t ImageBytes(const SlotStateShape& shape);
  // `image` is written, and read, in stream order.
  SlotFacts SwapOut(Stream& stream, int slot, const HostFrames& image);
  void SwapIn(Stream& stream, int slot, const HostFrames& image, SlotFacts facts);

  // Whether the slot's request wants logprobs.
  bool wants_logprobs(int slot) const { return facts_[slot].wants_logprobs; }
  bool greedy(int slot) const { return facts_[slot].greedy; }

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
  template <class Copy>
  void ForEachPiece(int slot, bool counts_tokens, const HostFrames& image, const Copy& copy) const;

  Device* device_ = nullptr;
  SlotArrays arrays_;
  AcceptanceRule* rule_ = nullptr;  // arrays_.rule, for writing
  SlotStateShape shape_;
  Matrix<float> boundaries_;  // [slots, M * output_width]
  int32_t* recent_ids_ = nullptr;
  Matrix<float> recent_hiddens_;
  std::vector<BlockTables> tables_;   // of each cache group
  std::vector<SlotFacts> facts_;      // [slots]
  std::vector<int32_t> zero_counts_;  // [V]
};

}  // namespace foredraft
