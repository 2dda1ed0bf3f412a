#pragma once

// A layer of DeepSeek-V4 (docs/deepseek-v4.md sections 2 to 5) as a recipe over ops, for prompt rows and
// generated rows alike: the rows of a sequence in a batch are adjacent, in ascending order of position.

#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model/deepseek_v4/v4_forward.h"

namespace foredraft {

struct V4LayerContext {
  AttentionKind kind = AttentionKind::kWindow;
  V4LayerCache cache;
  int first_position = 0;  // 0 for the target, 1 for the MTP module
};

// streams: [R, N D], updated.
void V4Layer(const V4Forward& f, const V4LayerWeights& w, const V4LayerContext& context,
             Matrix<float> streams);

}  // namespace foredraft
