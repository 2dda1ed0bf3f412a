#pragma once

// Properties of the drafter in use, on which the scheduler and the sizes of a rank depend
// (docs/speculation.md sections 1.6 and 5). Plain data: the drafter's kind computes it from configuration and
// model (engine/kinds/drafter_kinds.h).

namespace foredraft {

// The defaults are those of a server that drafts nothing.
struct DrafterRequirements {
  // MTP modules that run: M of docs/speculation.md; or stages of the model's own drafter. Each has weights
  // and cache rows.
  int module_count = 0;
  // How far a step writes rows past the last one that it verifies: a step at length p with K drafts writes
  // positions up to p + K + rows_ahead, and of those it keeps the ones before P + rows_ahead.
  int rows_ahead = 0;
  // How many of the last prompt tokens are computed even where a cached prefix has them.
  int reuse_reserve = 1;
  // Only blocks within the first prompt_len - offer_margin tokens may be reused: later ones are written
  // again.
  int offer_margin = 0;
  // Given tokens in a step (resume) are at most K + 1, and at most this: the drafter has written rows of its
  // own drafts, not of given tokens or of drafts that the plan forces.
  int given_limit = 1 << 20;
  // Rows per sequence of a forward that makes all drafts at once; 0: there is none.
  int block_rows = 0;

  // Drafts that the plan may force upon a slot in a step: its last ones (SlotMasks::forced_drafts).
  int forced_limit() const { return given_limit - 1; }

  bool operator==(const DrafterRequirements&) const = default;
};

}  // namespace foredraft
