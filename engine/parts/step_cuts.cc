#include "engine/parts/step_cuts.h"

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {

absl::Status StepCuts::Allocate(Device& device, const StepPartShape& shape, SlotState& /*slots*/) {
  ASSIGN_OR_RETURN(first_rows_, device.AllocateArray<int32_t>(shape.bucket));
  ASSIGN_OR_RETURN(verify_lens_, device.AllocateArray<int32_t>(shape.bucket));
  ASSIGN_OR_RETURN(chances_, device.AllocateArray<float>(shape.step_rows));
  ASSIGN_OR_RETURN(calibration_, device.AllocateArray<DraftCalibration>(kMaxDraftLen));
  return absl::OkStatus();
}

void StepCuts::BeforePrefill(const SubmittedPlan& submitted) {
  const std::vector<DraftCalibration>& calibration = submitted.plan.calibration;
  if (calibration.empty() || calibration == host_) return;
  CHECK_LE(calibration.size(), size_t{kMaxDraftLen});
  host_ = calibration;
  submitted.Write(calibration_, host_.data(), host_.size());
}

void StepCuts::BeforeRows(const Ops& ops, Stream& stream, int verify_rows, DecodeRowsParams& rows) const {
  if (verify_rows == 0) return;
  ops.cut_drafts(stream, {.first_rows = first_rows_,
                          .ids = rows.ids,
                          .row_slots = rows.row_slots,
                          .positions = rows.positions,
                          .row_in_slot = rows.row_in_slot,
                          .chances = chances_,
                          .verify_lens = verify_lens_,
                          .live_slots = rows.live_slots,
                          .calibration = calibration_,
                          .slots = rows.slots,
                          .bucket = rows.bucket,
                          .draft_len = rows.draft_len,
                          .row_count = verify_rows});
  rows.first_rows = first_rows_;
}

}  // namespace foredraft
