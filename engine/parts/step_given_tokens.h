#pragma once

// The tokens that a plan gives to slots (GivenTokens of scheduler/plan.h): they take the place of the slots'
// drafts (SlotDrafts::given_count).

#include "engine/parts/step_part.h"

namespace foredraft {

class StepGivenTokens : public StepPart {
 public:
  void BeforeDecode(const SubmittedPlan& submitted) override;
};

}  // namespace foredraft
