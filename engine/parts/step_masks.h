#pragma once

// The masks of a plan on the device: their words, which mask applies to each row of the decode step and to
// each first token of the prefill, and the drafts that grammars force in some of these rows. A plan without
// masks copies nothing, except the first one and the first after one with masks.

#include <cstdint>
#include <vector>

#include "engine/parts/step_part.h"
#include "kernels/row_masks.h"
#include "kernels/slot_arrays.h"

namespace foredraft {

class StepMasks : public StepPart {
 public:
  absl::Status Allocate(Device& device, const StepPartShape& shape, SlotState& slots) override;
  // Brings the masks to the device. CHECKs that there are no more masks than rows in the plan.
  void BeforePrefill(const SubmittedPlan& submitted) override;
  // Replaces the slots' last drafts where the plan forces some.
  void BeforeDecode(const SubmittedPlan& submitted) override;
  void BeforeRows(const Ops& ops, Stream& stream, int verify_rows, DecodeRowsParams& rows) const override;

  // The masks of the step's rows, as decode_rows assigns them.
  RowMasks of_step() const { return {.words = words_, .of_row = row_masks_, .of_others = present_}; }
  // The masks of unconstrained rows: drafts, and first tokens of prompts without constraint.
  RowMasks of_unconstrained() const { return {.of_others = present_}; }

  // Sets and returns the plan's masks of the prompts in `slots`: row i chooses the first token of slots[i].
  RowMasks SetFirst(Stream& stream, const RankPlan& plan, const std::vector<int32_t>& slots);

 private:
  void SetPresent(Stream& stream);
  void ForceDrafts(const SubmittedPlan& submitted, const SlotMasks& masks) const;

  Device* device_ = nullptr;
  StepPartShape shape_;
  uint32_t* words_ = nullptr;         // [step_rows + bucket, MaskWordCount]
  SlotStepMasks* by_slot_ = nullptr;  // [slots]: SlotArrays::step_masks
  int32_t* row_masks_ = nullptr;      // [step_rows]
  int32_t* first_masks_ = nullptr;    // [bucket]
  uint32_t* present_ = nullptr;       // [MaskWordCount]: all except missing_tokens; null if none is missing

  // Host.
  std::vector<uint32_t> host_words_;
  std::vector<SlotStepMasks> host_by_slot_;
  bool is_set_ = false;    // BeforePrefill was called
  bool is_clear_ = false;  // every slot's count on the device is 0
};

}  // namespace foredraft
