#pragma once

// How a step turns logits into tokens. Where every live request is greedy, without penalties and logprobs,
// argmax alone gives the same tokens as full sampling in less time. The plan chooses for all ranks
// (IterationPlan::argmax), and each way has its own captured steps.

#include "kernels/ops.h"

namespace foredraft {

enum class SamplingMode { kSample, kArgmax };

// Chooses only tokens below p.token_count. Fills p.out, and with kSample p.logprobs where a request wants
// them.
inline void SampleTokens(const Ops& ops, Stream& stream, SamplingMode sampling_mode, const SampleParams& p) {
  if (sampling_mode == SamplingMode::kArgmax) {
    ops.argmax(stream, {.out = p.out, .logits = p.logits.columns(0, p.choices()), .masks = p.masks});
  } else {
    ops.sample(stream, p);
  }
}

}  // namespace foredraft
