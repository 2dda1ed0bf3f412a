#include "kernels/cpu/penalties.h"

#include <algorithm>

namespace foredraft::cpu {
namespace {

float Penalised(const SlotConstants& c, float logit, bool in_prompt, int32_t output_count) {
  if (in_prompt || output_count > 0) {
    logit = logit > 0.0f ? logit / c.repetition_penalty : logit * c.repetition_penalty;
  }
  if (output_count > 0) {
    logit -= c.frequency_penalty * static_cast<float>(output_count) + c.presence_penalty;
  }
  return logit;
}

}  // namespace

bool HasPenalties(const SlotConstants& c) {
  return c.repetition_penalty != 1.0f || c.presence_penalty != 0.0f || c.frequency_penalty != 0.0f;
}

void WritePenalised(const SlotArrays& slots, int64_t slot, std::span<const int32_t> history,
                    const float* logits, float* out) {
  const int32_t vocab = slots.vocab_size;
  const SlotConstants& c = slots.constants[slot];
  const int32_t* counts = slots.output_counts + slot * vocab;
  const uint8_t* in_prompt = slots.prompt_seen + slot * vocab;
  for (int32_t v = 0; v < vocab; ++v) out[v] = Penalised(c, logits[v], in_prompt[v] != 0, counts[v]);
  for (const int32_t v : history) {
    if (v < 0 || v >= vocab) continue;  // an illegal draft, never emitted
    const int32_t repeats = static_cast<int32_t>(std::count(history.begin(), history.end(), v));
    out[v] = Penalised(c, logits[v], in_prompt[v] != 0, counts[v] + repeats);
  }
}

}  // namespace foredraft::cpu
