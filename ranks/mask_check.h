#pragma once

// Whether the masks of a plan fit the rank that is to carry it out: a part of plan_check.h. Pure.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "scheduler/plan.h"

namespace foredraft {

struct MaskLimits {
  int32_t vocab_size = 0;
  int32_t draft_len = 0;   // K of the plan
  int64_t most_masks = 0;  // that the rank has room for
  int32_t most_forced_drafts = 0;
};

// INVALID_ARGUMENT names the field, its value and what is allowed. `gate_of` gives the gate of a slot that
// has a sequence.
absl::Status CheckMasks(const RankPlan& plan, const MaskLimits& limits,
                        const std::function<const SlotGate&(int32_t slot)>& gate_of);

}  // namespace foredraft
