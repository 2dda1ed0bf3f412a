#pragma once

// The layers of DeepSeek-V3 (docs/deepseek-v3.md sections 2 and 5).

#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/deepseek_v3/sparse_indexer.h"
#include "engine/model/draft_target.h"
#include "engine/model/forward.h"
#include "engine/model/linear.h"
#include "engine/model/mla.h"

namespace foredraft {

// What a layer needs besides its rows and weights.
struct V3LayerContext {
  AttentionContext attention;
  IndexerContext indexer;
  int index = 0;  // of the layer
  // Reads the residual stream after the layer below. It is called in this layer, because that stream is
  // complete only after this layer's first norm has added the sum that the layer below left. May be null.
  const LayerReader* reader_below = nullptr;
};

// Norm, attention, residual, norm, MLP or experts, residual. Updates f.activations.hidden, [R, D]: first adds
// `before`, the sum that the layer before left, and returns the sum that the next layer has to add.
LeftToAdd V3Layer(const Forward& f, const V3LayerWeights& w, const V3LayerContext& context,
                  const LeftToAdd& before);

// One Multi-Token Prediction module: output = shared_head.norm(layer(eh_proj(enorm(E[t_s]) |
// hnorm(f.batch.previous)))), [R, D]. `context` has the module's cache layer and level.
void V3MtpLayer(const Forward& f, const V3ModuleWeights& w, const bf16* embed_tokens,
                const V3LayerContext& context, Matrix<float> output);

}  // namespace foredraft
