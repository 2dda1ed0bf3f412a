#pragma once

// All parts of a step. This list is the only place that names them all. Owner: Rank. Thread: the one that
// submits plans.

#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "engine/parts/step_acceptance.h"
#include "engine/parts/step_cuts.h"
#include "engine/parts/step_given_tokens.h"
#include "engine/parts/step_masks.h"
#include "engine/parts/step_slots.h"

namespace foredraft {

struct StepParts {
  StepParts() = default;
  StepParts(const StepParts&) = delete;  // `list` points to the members

  StepAcceptance acceptance;
  StepCuts cuts;
  StepGivenTokens given_tokens;
  StepMasks masks;
  StepSlots slots;

  // The order in which each phase calls them.
  const std::vector<StepPart*> list = {&acceptance, &cuts, &given_tokens, &masks, &slots};

  absl::Status Allocate(Device& device, const StepPartShape& shape, SlotState& slot_state) {
    for (StepPart* const part : list) RETURN_IF_ERROR(part->Allocate(device, shape, slot_state));
    return absl::OkStatus();
  }
};

}  // namespace foredraft
