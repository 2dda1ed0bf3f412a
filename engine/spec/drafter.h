#pragma once

// Makes the drafts of the next step and keeps the MTP modules' cache rows. Drafts cost speed, never tokens.
// Only ops and fixed buffers, so that Draft can be captured. Owner: Rank. Thread: the one that submits plans.

#include "engine/comm/rank_rows.h"
#include "engine/spec/token_choice.h"
#include "kernels/device.h"
#include "kernels/slot_arrays.h"

namespace foredraft {

struct Rank;

// Each sequence's result of the decode step's verification, or of the prefill.
struct DraftInput {
  const StepOutput* outputs = nullptr;  // [bucket]
  // [bucket * (draft_len + 1), Model::output_width]: level 0 at positions p.. of each sequence.
  Matrix<const float> target_output;
  int bucket = 0;     // of the decode step; after a prefill, the number of prompts that ended
  int draft_len = 0;  // K of the step; 0 after a prefill
  TokenChoice choice = TokenChoice::kSample;
  const RankRows* rank_rows = nullptr;  // every rank's `bucket`; null: the same as here, as in a decode step
};

// Stateless: everything a drafter keeps between steps is in the rank's slots and cache.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // A prompt ended and its first token is known: row m of every module, then the first draft if `make_draft`.
  // The modules' rows of the prompt itself, boundaries and recent rows are written already.
  virtual void FirstDraft(const Rank& rank, const DraftInput& input, bool make_draft) const = 0;

  // Rows of what was just committed, then `draft_count` drafts per sequence into the slots' drafts; 0 = rows
  // only, which keeps the cache warm (docs/speculation.md section 3).
  virtual void Draft(const Rank& rank, const DraftInput& input, int draft_count) const = 0;
};

}  // namespace foredraft
