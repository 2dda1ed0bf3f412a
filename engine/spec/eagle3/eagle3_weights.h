#pragma once

// The weights of an Eagle3 head with MLA, as its forward uses them. Views only, as in
// engine/model/weights.h. T: layers of the target that it reads, Vd: tokens that it can choose.

#include <vector>

#include "engine/model/weights.h"

namespace foredraft {

struct Eagle3Weights {
  const float* input_norm = nullptr;                // [T D] before fc, over all taps; or null
  std::vector<const float*> fc_norms;               // [T] of [D] each, one per tap; or empty
  PackedWeight fc;                                  // [D, T D]
  const float* input_layernorm = nullptr;           // [D] for the embedding half
  const float* hidden_norm = nullptr;               // [D] for the hidden half
  const float* post_attention_layernorm = nullptr;  // [D]
  const float* norm = nullptr;                      // [D] before the head
  MlaWeights self_attn;  // its first projections read 2 D inputs, the embedding half first
  DenseMlpWeights mlp;
  PackedWeight lm_head;  // [Vd, D]; absent: the target's

  int module_count() const { return 1; }
};

}  // namespace foredraft
