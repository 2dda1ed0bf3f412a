#ifndef FOREDRAFT_ENGINE_DECODE_STEP_H_
#define FOREDRAFT_ENGINE_DECODE_STEP_H_

// The decode step of an iteration: rows from the slots, target forward, verification, drafts. All of it is
// ops on fixed buffers, so that it can be captured, and nothing branches on what was accepted
// (docs/architecture.md, captured-step).

#include "engine/graph_cache.h"
#include "engine/rank.h"

namespace foredraft {

// Reads the live slots from buffers.live_slots and writes their results to buffers.outputs and logprobs.
void DecodeStep(const Rank& rank, const StepKey& key);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_DECODE_STEP_H_
