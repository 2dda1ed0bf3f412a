#pragma once

// The decode step of an iteration: rows from the slots, target forward, verification, drafts. It consists of
// ops on fixed buffers alone, so that it can be captured, and never branches on which drafts were accepted
// (docs/invariants.md, captured-step).

#include <vector>

#include "engine/graph_cache.h"
#include "engine/rank.h"

namespace foredraft {

// The steps of these batch sizes, for every K up to max_draft_len and both choices of tokens; with `cuts`
// also the steps that have K drafts but rows for only 1..K - 1 of them per seat. The last one is the largest.
std::vector<StepKey> StepsOf(const std::vector<int>& batch_sizes, int max_draft_len, bool cuts);

// Runs the step on the data that the parts (rank.parts) have copied to the device. Writes the results to
// buffers.outputs and logprobs.
void DecodeStep(const Rank& rank, const StepKey& key);

}  // namespace foredraft
