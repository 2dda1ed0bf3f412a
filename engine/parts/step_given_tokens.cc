#include "engine/parts/step_given_tokens.h"

#include <algorithm>

#include "base/check.h"

namespace foredraft {

void StepGivenTokens::BeforeDecode(const SubmittedPlan& submitted) {
  for (const GivenTokens& given : submitted.rank.given_tokens) {
    SlotDrafts drafts{
        .draft_count = 0, .given_count = static_cast<int32_t>(given.token_ids.size()), .tokens = {}};
    CHECK_GE(drafts.given_count, 1) << "slot " << given.slot;
    CHECK_LE(drafts.given_count, kMaxDraftLen + 1) << "slot " << given.slot;
    std::copy(given.token_ids.begin(), given.token_ids.end(), drafts.tokens);
    submitted.device.CopyToDevice(submitted.stream, submitted.slots.arrays().drafts + given.slot, &drafts,
                                  sizeof(drafts));
  }
}

}  // namespace foredraft
