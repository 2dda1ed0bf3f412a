#pragma once

#include "kernels/penalties.h"

namespace foredraft::cpu {

// out = the penalised logits of a row of `slot`, [vocab_size].
inline void WritePenalised(const SlotArrays& slots, int64_t slot, const DraftHistory& history,
                           const float* logits, float* out) {
  const int32_t vocab = slots.vocab_size;
  const SlotConstants& c = slots.constants[slot];
  const int32_t* counts = slots.output_counts + slot * vocab;
  const uint8_t* in_prompt = slots.prompt_seen + slot * vocab;
  for (int32_t v = 0; v < vocab; ++v) out[v] = Penalised(c, logits[v], in_prompt[v] != 0, counts[v]);
  for (int32_t i = 0; i < history.count; ++i) {
    const int32_t v = history.ids[i];
    if (v < 0 || v >= vocab) continue;  // an illegal draft is never emitted
    out[v] = Penalised(c, logits[v], in_prompt[v] != 0, counts[v] + history.Count(v));
  }
}

}  // namespace foredraft::cpu
