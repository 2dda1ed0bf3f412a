#pragma once

// The slot arrays in host memory, to be copied to a device and back.

#include <vector>

#include "kernels/slot_arrays.h"
#include "tests/ops/op_rig.h"

namespace foredraft {

struct SlotFixture {
  SlotFixture(int slots, int vocab)
      : vocab_size(vocab),
        constants(slots),
        progress(slots),
        drafts(slots),
        output_counts(static_cast<size_t>(slots) * vocab),
        prompt_seen(static_cast<size_t>(slots) * vocab) {
    for (SlotConstants& c : constants) {
      c = SlotConstants{};
      c.top_p = 1.0f;
      c.repetition_penalty = 1.0f;
      c.logprob_count = -1;
      c.thinking.begin = -1;
      c.thinking.end = -1;
      c.draft_cap = kMaxDraftLen;
      c.length_limit = 1000;
    }
  }

  SlotArrays Put(OpRig& rig) const {
    return {.rule = rig.Put(std::vector<AcceptanceRule>{rule}),
            .constants = rig.Put(constants),
            .progress = rig.Put(progress),
            .drafts = rig.Put(drafts),
            .output_counts = rig.Put(output_counts),
            .prompt_seen = rig.Put(prompt_seen),
            .vocab_size = vocab_size};
  }

  // Reads back the arrays that ops may change.
  void Get(OpRig& rig, const SlotArrays& arrays) {
    progress = rig.Get(arrays.progress, progress.size());
    drafts = rig.Get(arrays.drafts, drafts.size());
    output_counts = rig.Get(arrays.output_counts, output_counts.size());
  }

  int vocab_size;
  AcceptanceRule rule = {};              // strict
  std::vector<SlotConstants> constants;  // neutral: greedy, no penalties, no stop ids
  std::vector<SlotProgress> progress;
  std::vector<SlotDrafts> drafts;
  std::vector<int32_t> output_counts;
  std::vector<uint8_t> prompt_seen;
};

}  // namespace foredraft
