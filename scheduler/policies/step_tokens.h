#pragma once

// How many tokens a decode step can be expected to emit, by its shape, from the confidences of the drafts
// that are there: what the ops that cut drafts will do (cut_drafts of kernels/ops/draft_block.h), foreseen.

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
  // The step verifies these very drafts; else those that a step in flight makes, of which these are the
  // predecessors.
  bool fresh = false;

  int live_count() const;
  bool have_confidences() const;  // of any sequence
};

// By StepShape::index: the expected tokens of all ranks' sequences in a step with `bucket` seats per rank.
// Drafts without a confidence take the mean chance.
std::vector<double> TokensByShape(const StepDrafts& drafts, const ConfidenceCalibration& calibration,
                                  int bucket, int max_draft_len);

}  // namespace foredraft
