#pragma once

// Acceptance (docs/speculation.md section 2). Strict: the target's own token is chosen after each row,
// greedily or with the request's noise. A draft is accepted if it equals that token, so the emitted tokens
// never depend on the drafts. Relaxed and forced acceptance are named exceptions, off unless the plan's rule
// has them on.

#include "engine/graph_cache.h"
#include "engine/rank.h"

namespace foredraft {

// Verifies the first key.rows() rows of buffers.target, whose outputs are buffers.target_output. Fills
// buffers.outputs and logprobs, and advances the slots.
void Verify(const Rank& rank, const StepKey& key);

// Chooses the first token of each of the `count` prompts of buffers.ended, from buffers.ended_output. Fills
// buffers.first_outputs and first_logprobs. rank_counts: every tensor group's count. masks: of the prompts.
void AcceptFirstTokens(const Rank& rank, const RankRows& rank_counts, int count, SamplingMode sampling_mode,
                       const RowMasks& masks);

}  // namespace foredraft
