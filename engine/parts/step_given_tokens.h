#pragma once

// The tokens that a plan gives to slots (GivenTokens of scheduler/plan.h): they replace the slots' drafts
// (SlotDrafts::given_count).

#include <algorithm>

#include "base/check.h"
#include "engine/parts/step_part.h"

namespace foredraft {

class StepGivenTokens : public StepPart {
 public:
  void BeforeDecode(const SubmittedPlan& submitted) override {
    for (const GivenTokens& given : submitted.rank.given_tokens) {
      SlotDrafts drafts{
          .draft_count = 0, .given_count = static_cast<int32_t>(given.token_ids.size()), .tokens = {}};
      CHECK_GE(drafts.given_count, 1) << "slot " << given.slot;
      CHECK_LE(drafts.given_count, kMaxDraftLen + 1) << "slot " << given.slot;
      std::copy(given.token_ids.begin(), given.token_ids.end(), drafts.tokens);
      submitted.Write(submitted.slots.arrays().drafts + given.slot, &drafts, 1);
    }
  }
};

}  // namespace foredraft
