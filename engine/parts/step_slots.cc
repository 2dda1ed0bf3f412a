#include "engine/parts/step_slots.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {

absl::Status StepSlots::Allocate(Device& device, const StepPartShape& shape, SlotState& /*slots*/) {
  ASSIGN_OR_RETURN(live_, device.AllocateArray<int32_t>(shape.bucket));
  host_.resize(shape.bucket);
  return absl::OkStatus();
}

void StepSlots::BeforeDecode(const SubmittedPlan& submitted) {
  const std::vector<int32_t>& live = submitted.rank.live_slots;
  const int bucket = submitted.plan.decode_bucket;
  if (bucket == 0) return;
  CHECK_LE(static_cast<int>(live.size()), bucket);
  std::fill(std::copy(live.begin(), live.end(), host_.begin()), host_.end(), -1);
  submitted.device.CopyToDevice(submitted.stream, live_, host_.data(), bucket * sizeof(int32_t));
}

}  // namespace foredraft
