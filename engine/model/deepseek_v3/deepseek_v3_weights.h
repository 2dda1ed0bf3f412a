#pragma once

// The weights of DeepSeek-V3 and of the families that compute the same, as the recipes of
// engine/model/deepseek_v3 use them. Views only, as in engine/model/weights.h.

#include <vector>

#include "engine/checkpoint/model_shard.h"
#include "engine/model/deepseek_v3/sparse_indexer.h"
#include "engine/model/weights.h"

namespace foredraft {

struct V3LayerWeights {
  const float* input_layernorm = nullptr;           // [D]
  const float* post_attention_layernorm = nullptr;  // [D]
  MlaWeights self_attn;
  SparseIndexerWeights indexer;
  bool is_moe = false;
  DenseMlpWeights mlp;  // where !is_moe
  MoeWeights moe;       // where is_moe
};

// MTP module i is layer num_hidden_layers + i of the checkpoint.
struct V3ModuleWeights {
  const float* enorm = nullptr;             // [D]
  const float* hnorm = nullptr;             // [D]
  PackedWeight eh_proj;                     // [D, 2 D], embedding half first
  const float* shared_head_norm = nullptr;  // [D]
  V3LayerWeights layer;
};

struct V3Weights {
  ModelShard shard;                    // which part of the model these are
  const bf16* embed_tokens = nullptr;  // [V, D]
  const float* norm = nullptr;         // [D]
  PackedWeight lm_head;                // [V, D]; packed from embed_tokens where they are tied
  std::vector<V3LayerWeights> layers;
  std::vector<V3ModuleWeights> mtp_modules;  // the modules that LoadWeights loaded

  int module_count() const { return static_cast<int>(mtp_modules.size()); }
};

}  // namespace foredraft
