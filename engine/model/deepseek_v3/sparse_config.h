#pragma once

// The keys of config.json that say how sparse attention selects positions (docs/deepseek-v3.md section 9).

#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"

namespace foredraft {

// The widest indexer that the kernels take. A wider indexer does not run: its model is served for sequences
// of up to index_topk positions only.
inline constexpr int kMaxIndexHeads = 128;
inline constexpr int kMaxIndexHeadDim = 128;

// interleaved: whether the family's indexer pairs RoPE values (2i, 2i + 1); a config.json that says otherwise
// is refused.
void ReadSparseAttention(JsonFields& fields, bool interleaved, ModelConfig& config);

}  // namespace foredraft
