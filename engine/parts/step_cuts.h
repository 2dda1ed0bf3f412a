#pragma once

// Steps with fewer rows than drafts: decides which drafts have rows (cut_drafts of
// kernels/ops/draft_block.h), by the calibration that the plans bring. A plan without a calibration keeps the
// last one.

#include <cstdint>
#include <vector>

#include "config/draft_calibration.h"
#include "engine/parts/step_part.h"

namespace foredraft {

class StepCuts : public StepPart {
 public:
  absl::Status Allocate(Device& device, const StepPartShape& shape, SlotState& slots) override;
  void BeforePrefill(const SubmittedPlan& submitted) override;
  void BeforeRows(const Ops& ops, Stream& stream, int verify_rows, DecodeRowsParams& rows) const override;

  // [bucket]: where the seats' rows begin; null in a step that has a row for every draft.
  const int32_t* first_rows(int verify_rows) const { return verify_rows > 0 ? first_rows_ : nullptr; }

 private:
  int32_t* first_rows_ = nullptr;            // [bucket]
  int32_t* verify_lens_ = nullptr;           // [bucket]
  float* chances_ = nullptr;                 // [step rows]
  DraftCalibration* calibration_ = nullptr;  // [kMaxDraftLen]
  std::vector<DraftCalibration> host_;       // the device's calibration; empty before the first plan with one
};

}  // namespace foredraft
