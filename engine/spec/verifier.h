#ifndef FOREDRAFT_ENGINE_SPEC_VERIFIER_H_
#define FOREDRAFT_ENGINE_SPEC_VERIFIER_H_

// Acceptance (docs/speculation.md section 2). Strict: the target's own token after each row, greedy or by the
// request's noise; a draft is accepted where it equals it, so what is emitted never depends on the drafts.
// Relaxed and forced acceptance are the two named exceptions, off unless the plan's rule asks for them.

#include "engine/graph_cache.h"
#include "engine/model/deepseek_v3.h"
#include "engine/slot_state.h"
#include "engine/step_buffers.h"

namespace foredraft {

// Rows b.target (bucket * (K + 1) of them), whose outputs stand in b.target_output. Fills b.outputs
// and b.logprobs, advances the slots.
void Verify(const Ops& ops, Stream& stream, const DeepseekV3& model, const SlotState& slots,
            const StepBuffers& b, const StepKey& key);

// The first token of each prompt that ended: rows [0, count) of b.previous are their last outputs, and rows
// [0, count) of b.module name their slots and positions. Fills b.first_outputs and b.first_logprobs.
void AcceptFirstTokens(const Ops& ops, Stream& stream, const DeepseekV3& model, const SlotState& slots,
                       const StepBuffers& b, int count, TokenChoice choice);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_SPEC_VERIFIER_H_
