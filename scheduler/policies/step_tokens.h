#pragma once

// How many tokens a decode step can be expected to emit, by its shape, given the confidences of its drafts: a
// forecast of which drafts cut_drafts (kernels/ops/draft_block.h) will keep.

#include <span>
#include <vector>

#include "scheduler/policies/confidence_calibration.h"
#include "scheduler/policies/step_estimates.h"

namespace foredraft {

// The drafts of one live sequence, as the last result has them. Empty where they are not known.
struct SequenceDrafts {
  std::span<const float> confidences;  // logits, of draft 1..
  int cap = 0;                         // drafts verified at most
};

struct StepDrafts {
  std::vector<std::vector<SequenceDrafts>> ranks;  // live sequences
  // True: the step verifies these drafts. False: it verifies the drafts that a step in flight makes, which
  // come after these.
  bool fresh = false;

  int live_count() const;
  bool have_confidences() const;  // of any sequence
};

// The expected tokens of all ranks' sequences in a step with `bucket` seats per rank, by StepShape::index.
// Drafts without a confidence take the mean chance.
std::vector<double> TokensByShape(const StepDrafts& drafts, const ConfidenceCalibration& calibration,
                                  int bucket, int max_draft_len);

}  // namespace foredraft
