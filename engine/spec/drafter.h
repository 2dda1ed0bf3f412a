#ifndef FOREDRAFT_ENGINE_SPEC_DRAFTER_H_
#define FOREDRAFT_ENGINE_SPEC_DRAFTER_H_

// Makes the drafts of the next step and keeps the MTP modules' cache rows. Drafts cost speed, never tokens.
// Only ops and fixed buffers, so that Draft can be captured. Owner: the executor. Thread: the executor's.

#include "engine/comm/rank_rows.h"
#include "engine/spec/token_choice.h"
#include "kernels/device.h"
#include "kernels/slot_arrays.h"

namespace foredraft {

// What verification (or the prefill) left for each place.
struct DraftInput {
  const StepOutput* outputs = nullptr;  // [places]
  Matrix<const float>
      target_output;  // [places * (verified_len + 1), D]: level 0 at positions p.. of each place
  int places = 0;
  int verified_len = 0;  // K of the step whose outputs these are; 0 after a prefill
  TokenChoice choice = TokenChoice::kSample;
  const RankRows* rank_places = nullptr;  // places of every rank; null: as many as here, as in a decode step
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  // A prompt ended and its first token is known: row m of every module, then the first draft if asked.
  // `input` has verified_len 0; the modules' rows of the prompt itself, boundaries and recent rows are there
  // already.
  virtual void FirstDraft(Stream& stream, const DraftInput& input, bool make_draft) const = 0;

  // Rows of what was just committed, then `draft_count` drafts per place into the slots' drafts; 0 = rows
  // only, which keeps the cache warm (docs/speculation.md section 3).
  virtual void Draft(Stream& stream, const DraftInput& input, int draft_count) const = 0;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_SPEC_DRAFTER_H_
