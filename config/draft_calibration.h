#pragma once

namespace foredraft {

// Maps the logit of a draft's confidence to the chance that the draft is accepted if all drafts before it
// are: sigmoid(slope * logit + offset). Each draft of a block has its own; the draft policy `confidence`
// measures them (scheduler/policies/confidence_calibration.h). It travels with every plan into device memory,
// where cut_drafts reads it. Trivially copyable. The default takes a confidence as it is.
struct DraftCalibration {
  float slope = 1;
  float offset = 0;
  bool operator==(const DraftCalibration&) const = default;
};

// Bound on the logit of a confidence.
inline constexpr float kLargestConfidence = 30.0f;

}  // namespace foredraft
