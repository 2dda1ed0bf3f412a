#pragma once

// The prefill forward of an iteration: prompt chunks of several sequences in one eager forward of exact size,
// the drafter's rows for the same positions and, for prompts that end here, the first token and its drafts.
// If any rank has rows, every rank runs all of it with its own rows (docs/invariants.md, lockstep).

#include <functional>

#include "engine/rank.h"
#include "scheduler/plan.h"

namespace foredraft {

// Carries out the chunks of plan.ranks[index]. The first tokens of prompts that end here are then in
// buffers.first_outputs and first_logprobs, in the order of their chunks. `abandoned` is as in Batch: tokens
// and cache rows of an abandoned prefill mean nothing.
void RunPrefill(Rank& rank, const IterationPlan& plan, int index,
                const std::function<bool()>* abandoned = nullptr);

}  // namespace foredraft
