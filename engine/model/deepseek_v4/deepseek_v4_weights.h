#pragma once

// The weights of DeepSeek-V4 on a device (docs/deepseek-v4.md section 7), as the recipes of
// engine/model/deepseek_v4/deepseek_v4.h use them. Views only: the memory belongs to the device. Vectors are
// FP32.
//
// Letters in shapes: hidden D, streams N, heads H, head width d, experts E, expert width M, vocabulary V. A
// rank of a tensor group has its part of H, o_groups and V (ModelShard).

#include <vector>

#include "engine/checkpoint/model_shard.h"
#include "engine/model/weights.h"
#include "kernels/tensor.h"

namespace foredraft {

struct HyperWeights {
  const float* fn = nullptr;     // [(2 + N) N, N D]; a head's: [N, N D]
  const float* scale = nullptr;  // [3]; a head's: [1]
  const float* base = nullptr;   // [(2 + N) N]; a head's: [N]
};

// c = d, or 2 d where windows overlap. For the indexer's compressor, d is the index width.
struct CompressorWeights {
  PackedWeight wkv;             // [c, D]
  PackedWeight wgate;           // [c, D]
  const float* ape = nullptr;   // [ratio, c]
  const float* norm = nullptr;  // [d]
};

struct IndexerWeights {
  PackedWeight wq_b;          // [index heads * index width, q_lora_rank]
  PackedWeight weights_proj;  // [index heads, D]
  CompressorWeights compressor;
};

struct V4AttentionWeights {
  PackedWeight wq_a;                 // [q_lora_rank, D]
  const float* q_norm = nullptr;     // [q_lora_rank]
  PackedWeight wq_b;                 // [H d, q_lora_rank]
  PackedWeight wkv;                  // [d, D]
  const float* kv_norm = nullptr;    // [d]
  PackedWeights wo_a;                // [o_groups], each [o_lora_rank or a part, H d / o_groups] bf16
  PackedWeight wo_b;                 // [D, o_groups * o_lora_rank]
  const float* attn_sink = nullptr;  // [H]
  CompressorWeights compressor;      // absent in layers of ratio 0
  IndexerWeights indexer;            // of CSA layers
};

struct V4LayerWeights {
  HyperWeights hc_attn;
  HyperWeights hc_ffn;
  const float* attn_norm = nullptr;  // [D]
  const float* ffn_norm = nullptr;   // [D]
  V4AttentionWeights attn;
  MoeWeights ffn;
};

struct V4ModuleWeights {
  const float* enorm = nullptr;  // [D]
  const float* hnorm = nullptr;  // [D]
  PackedWeight e_proj;           // [D, D]
  PackedWeight h_proj;           // [D, D]
  V4LayerWeights layer;
  HyperWeights hc_head;
  const float* norm = nullptr;  // [D]
};

// DSpark (docs/dspark.md). T tapped layers, rank r.
struct DSparkWeights {
  PackedWeight main_proj;            // [D, T D]
  const float* main_norm = nullptr;  // [D]
  std::vector<V4LayerWeights> stages;
  HyperWeights hc_head;
  const float* norm = nullptr;        // [D]
  const bf16* markov_w1 = nullptr;    // [V, r]
  PackedWeight markov_w2;             // [V, r]
  const float* confidence = nullptr;  // [D + r]
};

struct V4Weights {
  ModelShard shard;             // which part of the model these are
  const bf16* embed = nullptr;  // [V, D]
  std::vector<V4LayerWeights> layers;
  HyperWeights hc_head;
  const float* norm = nullptr;  // [D]
  PackedWeight head;            // [V, D]
  std::vector<V4ModuleWeights> modules;
  DSparkWeights dspark;  // its stages replace the modules

  int module_count() const { return static_cast<int>(modules.size() + dspark.stages.size()); }
};

}  // namespace foredraft
