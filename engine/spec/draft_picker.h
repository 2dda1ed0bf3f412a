#ifndef FOREDRAFT_ENGINE_SPEC_DRAFT_PICKER_H_
#define FOREDRAFT_ENGINE_SPEC_DRAFT_PICKER_H_

// How a module's output becomes a draft, for every drafter: the shared head, then the target's own way of
// choosing, with the noise of the draft's position (docs/speculation.md section 2), so that sampled drafts
// match often.

#include "engine/model/deepseek_v3.h"
#include "engine/slot_state.h"
#include "engine/spec/drafter.h"
#include "engine/step_buffers.h"

namespace foredraft {

// Draft `draft_index` (from 1) of each place, from b.last_output, into the slots' drafts and b.draft_ids.
// Overwrites b.pick, b.logits and b.sample_scratch.
void PickDraft(const Ops& ops, Stream& stream, const DeepseekV3& model, const SlotState& slots,
               const StepBuffers& b, const DraftInput& input, int draft_index);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_SPEC_DRAFT_PICKER_H_
