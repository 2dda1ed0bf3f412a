#pragma once

// How a module's output becomes a draft, for every drafter: the head, then the target's own way of
// choosing, with the noise of the draft's position (docs/speculation.md section 2), so that sampled drafts
// match often.

#include "engine/rank.h"

namespace foredraft {

// Draft `draft_index` (from 1) of each sequence, from buffers.last_output, an output of `level`, into the
// slots' drafts and buffers.draft_ids. Overwrites buffers.pick, logits and sample_scratch.
void PickDraft(const Rank& rank, const DraftInput& input, int draft_index, int level);

}  // namespace foredraft
