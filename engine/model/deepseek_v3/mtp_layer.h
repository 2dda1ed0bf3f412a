#pragma once

// One Multi-Token Prediction module (DeepSeek-V3 report 2.2; docs/deepseek-v3.md section 5).

#include "engine/model/forward.h"
#include "engine/model/mla.h"

namespace foredraft {

// output = shared_head.norm(layer(eh_proj(enorm(E[t_s]) | hnorm(f.batch.previous)))), [R, D]. `context` has
// the module's cache layer and level.
void MtpLayer(const Forward& f, const MtpModuleWeights& w, const bf16* embed_tokens,
              const AttentionContext& context, Matrix<float> output);

}  // namespace foredraft
