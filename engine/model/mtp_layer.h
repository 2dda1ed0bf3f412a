#ifndef FOREDRAFT_ENGINE_MODEL_MTP_LAYER_H_
#define FOREDRAFT_ENGINE_MODEL_MTP_LAYER_H_

// One Multi-Token Prediction module (DeepSeek-V3 report 2.2; docs/deepseek-v3.md section 5).

#include "engine/comm/communicator.h"
#include "engine/model/mla.h"

namespace foredraft {

// output = shared_head.norm(layer(eh_proj(enorm(E[t_s]) | hnorm(previous)))), [R, D]. `context` carries the
// module's cache layer and level.
void MtpLayer(const Ops& ops, Stream& stream, Communicator& comm, const ModelConfig& config,
              const MtpModuleWeights& w, const bf16* embed_tokens, const Activations& a, const Batch& batch,
              const AttentionContext& context, Matrix<const float> previous, Matrix<float> output);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_MTP_LAYER_H_
