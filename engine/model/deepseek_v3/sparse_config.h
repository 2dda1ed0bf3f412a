#pragma once

// The keys of config.json that say how sparse attention selects (docs/deepseek-v3.md section 9).

#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"

namespace foredraft {

// The widest indexer that the kernels take. A wider one does not run: such a model is served up to
// index_topk.
inline constexpr int kMaxIndexHeads = 128;
inline constexpr int kMaxIndexHeadDim = 128;

// interleaved: how the family's indexer pairs values for RoPE; a config.json that says otherwise is refused.
void ReadSparseAttention(JsonFields& fields, bool interleaved, ModelConfig& config);

}  // namespace foredraft
