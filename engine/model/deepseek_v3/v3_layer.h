#pragma once

// The layers of DeepSeek-V3 (docs/deepseek-v3.md sections 2 and 5).

#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/deepseek_v3/sparse_indexer.h"
#include "engine/model/draft_target.h"
#include "engine/model/forward.h"
#include "engine/model/linear.h"
#include "engine/model/mla.h"

namespace foredraft {

// What a layer takes beside its rows and weights.
struct V3LayerContext {
  AttentionContext attention;
  IndexerContext indexer;
  int index = 0;  // of the layer
  // Reads the residual stream behind the layer below: it is whole only once this layer's first norm has added
  // what that one left. Or null.
  const LayerReader* reader_below = nullptr;
};

// Norm, attention, residual, norm, MLP or experts, residual. Updates f.activations.hidden, [R, D]: adds first
// what the layer before left, and leaves what the next one adds.
LeftToAdd V3Layer(const Forward& f, const V3LayerWeights& w, const V3LayerContext& context,
                  const LeftToAdd& before);

// One Multi-Token Prediction module: output = shared_head.norm(layer(eh_proj(enorm(E[t_s]) |
// hnorm(f.batch.previous)))), [R, D]. `context` has the module's cache layer and level.
void V3MtpLayer(const Forward& f, const V3ModuleWeights& w, const bf16* embed_tokens,
                const V3LayerContext& context, Matrix<float> output);

}  // namespace foredraft
