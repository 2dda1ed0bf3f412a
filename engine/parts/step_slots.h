#pragma once

// The slots of the decode step, one per seat of its bucket.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/parts/step_part.h"

namespace foredraft {

class StepSlots : public StepPart {
 public:
  absl::Status Allocate(Device& device, const StepPartShape& shape, SlotState& /*slots*/) override {
    ASSIGN_OR_RETURN(live_, device.AllocateArray<int32_t>(shape.bucket));
    host_.resize(shape.bucket);
    return absl::OkStatus();
  }
  void BeforeDecode(const SubmittedPlan& submitted) override {
    const std::vector<int32_t>& live = submitted.rank.live_slots;
    const int bucket = submitted.plan.decode_bucket;
    if (bucket == 0) return;
    CHECK_LE(static_cast<int>(live.size()), bucket);
    std::fill(std::copy(live.begin(), live.end(), host_.begin()), host_.end(), -1);
    submitted.Write(live_, host_.data(), bucket);
  }

  // [bucket]: the plan's live slots, then -1.
  const int32_t* live() const { return live_; }

 private:
  int32_t* live_ = nullptr;
  std::vector<int32_t> host_;
};

}  // namespace foredraft
