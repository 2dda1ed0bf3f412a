#pragma once

// The decode step of an iteration: rows from the slots, target forward, verification, drafts. All of it is
// ops on fixed buffers, so that it can be captured, and nothing branches on what was accepted
// (docs/invariants.md, captured-step).

#include <vector>

#include "engine/graph_cache.h"
#include "engine/rank.h"

namespace foredraft {

// The steps of these batch sizes, with every K up to max_draft_len and both choices of tokens; with `cuts`
// also those of K drafts and rows for 1..K - 1 of them per seat. The last one is the largest.
std::vector<StepKey> StepsOf(const std::vector<int>& batch_sizes, int max_draft_len, bool cuts);

// Reads what the parts have brought to the device, and writes their results to buffers.outputs and logprobs.
void DecodeStep(const Rank& rank, const StepKey& key);

}  // namespace foredraft
