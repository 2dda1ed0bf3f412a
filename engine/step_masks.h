#pragma once

// The masks of a plan on the device: their words, and which of them each row of the decode step and each
// first token of the prefill chooses from. Written before the ops that read them; their addresses are fixed,
// so a captured step holds them (docs/architecture.md, captured-step). A plan without masks copies nothing.
//
// Owner: Rank. Thread: the one that submits plans.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/row_masks.h"
#include "kernels/slot_arrays.h"
#include "scheduler/plan.h"

namespace foredraft {

struct StepMasksShape {
  int slot_count = 0;
  int step_rows = 0;    // of the largest decode step
  int bucket = 0;       // first tokens of a prefill at most
  int token_count = 0;  // the tokens that rows may choose, from the first: ModelConfig::choices
  std::vector<int32_t> missing_tokens = {};  // of these: ModelConfig::missing_tokens
};

class StepMasks {
 public:
  static absl::StatusOr<StepMasks> Create(Device& device, const StepMasksShape& shape);

  // SlotArrays::step_masks, [slots].
  const SlotStepMasks* by_slot() const { return by_slot_; }
  // [step rows]: what decode_rows writes, and what the rows of the step choose from.
  int32_t* row_masks() const { return row_masks_; }
  RowMasks of_step() const { return {.words = words_, .of_row = row_masks_, .of_others = present_}; }
  // The masks of rows that no constraint masks: drafts, and first tokens of free prompts.
  RowMasks of_unconstrained() const { return {.of_others = present_}; }

  // Brings a plan's masks to the device, before any op that reads them. CHECKs that there are no more than
  // the plan's rows.
  void Set(Stream& stream, const RankPlan& plan);
  // The masks of the prompts `slots`, whose first tokens are rows 0.., as the last plan has them.
  RowMasks SetFirst(Stream& stream, const RankPlan& plan, const std::vector<int32_t>& slots);

 private:
  void SetPresent(Stream& stream);

  Device* device_ = nullptr;
  StepMasksShape shape_;
  uint32_t* words_ = nullptr;         // [step_rows + bucket, MaskWordCount]
  SlotStepMasks* by_slot_ = nullptr;  // [slots]
  int32_t* row_masks_ = nullptr;      // [step_rows]
  int32_t* first_masks_ = nullptr;    // [bucket]
  uint32_t* present_ = nullptr;       // [MaskWordCount]: all but missing_tokens; null where none is missing

  // Host.
  std::vector<uint32_t> host_words_;
  std::vector<SlotStepMasks> host_by_slot_;
  bool is_set_ = false;    // Set was called
  bool is_clear_ = false;  // every slot's count on the device is 0
};

}  // namespace foredraft
