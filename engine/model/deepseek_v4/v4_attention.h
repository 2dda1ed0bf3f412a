#pragma once

#include "engine/model/deepseek_v4/v4_layer.h"

namespace foredraft {

// docs/deepseek-v4.md sections 3 and 4: reads a.normed, writes a.projected and the layer's cache.
void V4Attention(const V4Forward& f, const V4AttentionWeights& w, const V4LayerContext& context);

}  // namespace foredraft
