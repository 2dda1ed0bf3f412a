#pragma once

// The slots of the decode step, one per seat of its bucket.

#include <cstdint>
#include <vector>

#include "engine/parts/step_part.h"

namespace foredraft {

class StepSlots : public StepPart {
 public:
  absl::Status Allocate(Device& device, const StepPartShape& shape, SlotState& slots) override;
  void BeforeDecode(const SubmittedPlan& submitted) override;

  // [bucket]: the plan's live slots, then -1.
  const int32_t* live() const { return live_; }

 private:
  int32_t* live_ = nullptr;
  std::vector<int32_t> host_;
};

}  // namespace foredraft
