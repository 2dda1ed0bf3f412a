#pragma once

// One layer: norm, attention, residual, norm, MLP or experts, residual.

#include "engine/model/forward.h"
#include "engine/model/mla.h"

namespace foredraft {

// Updates f.activations.hidden, [R, D].
void DecoderLayer(const Forward& f, const LayerWeights& w, const AttentionContext& context);

}  // namespace foredraft
