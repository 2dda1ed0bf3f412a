#pragma once

#include <algorithm>

#include "kernels/logit_adjustments.h"

namespace foredraft::cpu {

// out = the adjusted logits of a row, [vocab_size]. Equals adjusted(v, logits[v]) for every v, and looks for
// biases, stop ids and drafts only where there are some.
inline void WriteAdjusted(const AdjustedLogits& adjusted, int32_t vocab, const float* logits, float* out) {
  const SlotConstants& c = *adjusted.constants;
  if (adjusted.penalises) {
    for (int32_t v = 0; v < vocab; ++v) {
      out[v] = Penalised(c, logits[v], adjusted.in_prompt[v] != 0, adjusted.counts[v]);
    }
  } else {
    std::copy(logits, logits + vocab, out);
  }
  const auto adjust = [&](int32_t v) {
    if (v >= 0 && v < vocab) out[v] = adjusted(v, logits[v]);  // an illegal draft is never emitted
  };
  for (int32_t i = 0; i < adjusted.history.count; ++i) adjust(adjusted.history.ids[i]);
  for (int32_t i = 0; i < c.bias_count; ++i) adjust(c.biases[i].token_id);
  for (int32_t i = 0; i < adjusted.excluded_stops; ++i) adjust(c.stop_ids[i]);
}

}  // namespace foredraft::cpu
