#pragma once

// A drafter makes the drafts of the next step and keeps what it needs for that: its buffers, its slot rows
// (registered by its kind, engine/spec/drafter_kind.h) and its rows of the cache. Bad drafts cost speed and
// never change tokens. Draft uses only ops and fixed buffers, so that it can be captured. Owner: Rank.
// Thread: the one that submits plans.

#include "engine/comm/rank_rows.h"
#include "engine/spec/sampling_mode.h"
#include "engine/step_buffers.h"
#include "kernels/device.h"
#include "kernels/slot_arrays.h"

namespace foredraft {

class SlotState;
struct StepContext;

// Each sequence's results of the decode step's verification, or of the prefill.
struct DraftInput {
  StepOutput* outputs = nullptr;  // [bucket]; a drafter adds the confidences of its drafts
  // [bucket * (draft_len + 1), Model::output_width]: level 0 at positions p.. of each sequence.
  Matrix<const float> target_output;
  int bucket = 0;     // of the decode step; after a prefill, the number of prompts that ended
  int draft_len = 0;  // K of the step; 0 after a prefill
  SamplingMode sampling_mode = SamplingMode::kSample;
  const RankRows* rank_rows = nullptr;  // `bucket` of every rank; null: all equal, as in a decode step
};

// A drafter's state between steps is in the rank's slots and cache. All ranks make the same calls.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Writes the drafter's rows of prompt chunks, whose outputs of level 0 are the first rows of
  // buffers.target_output, and keeps for each slot what the next chunk needs, on the host in `slots`, which
  // are step.slots. rank_rows: every rank's number of chunk rows.
  virtual void Prompt(const StepContext& step, SlotState& slots, const ChunkRows& chunks,
                      const RankRows& rank_rows) const = 0;

  // Called after Prompt for the prompts that ended, once their first tokens are chosen: writes the rows at
  // the first tokens' positions, then makes up to `draft_count` drafts per sequence in the slots.
  virtual void FirstDraft(const StepContext& step, const DraftInput& input, int draft_count) const = 0;

  // Writes the rows of the tokens just committed, then makes `draft_count` drafts per sequence in the slots.
  // 0: writes rows only, which keeps the cache warm (docs/speculation.md section 3).
  virtual void Draft(const StepContext& step, const DraftInput& input, int draft_count) const = 0;
};

}  // namespace foredraft
