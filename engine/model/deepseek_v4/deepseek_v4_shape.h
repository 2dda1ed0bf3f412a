#pragma once

// The part of DeepSeek-V4's shape that other models do not have (docs/deepseek-v4.md section 1). Sizes that
// other models have too are fields of ModelConfig, with the same meaning: num_attention_heads, q_lora_rank,
// qk_rope_head_dim, index_*, n_routed_experts and so on. DeepSeek-V4 has no kv_lora_rank, qk_nope_head_dim,
// v_head_dim, dense layers or expert groups.

#include <any>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "engine/model/model_config.h"
#include "engine/model/rope.h"

namespace foredraft {

// What a token attends besides the window of the last sliding_window keys.
enum class AttentionKind : int32_t {
  kWindow,             // nothing: SWA
  kCompressedSparse,   // the index_topk best entries of an overlapping compressor: CSA
  kHeavilyCompressed,  // all entries of a compressor: HCA
};

struct DeepseekV4Shape {
  std::vector<AttentionKind> layers;  // [num_hidden_layers]; MTP modules are kWindow
  std::vector<int32_t> hash_layers;   // [num_hidden_layers]: 1 where the token's id decides the experts
  int sparse_ratio = 4;               // tokens of a CSA entry
  int heavy_ratio = 128;              // tokens of an HCA entry
  int head_dim = 512;                 // its last qk_rope_head_dim values are rotated
  int o_lora_rank = 1024;             // outputs of a group of heads
  int o_groups = 8;                   // divides num_attention_heads
  int sliding_window = 128;           // uncompressed keys that a token attends, its own included
  double swiglu_limit = 10;           // bound of an expert's activations
  int hc_sinkhorn_iters = 20;
  double hc_eps = 1e-6;
  // The rotation of layers with a compressor; layers without one have rope_theta and no YaRN.
  double compress_rope_theta = 160000;
  std::optional<RopeScaling> compress_rope_scaling;

  // Tokens of an entry of this kind; 0: no entries.
  int Ratio(AttentionKind kind) const {
    return kind == AttentionKind::kWindow
               ? 0
               : (kind == AttentionKind::kCompressedSparse ? sparse_ratio : heavy_ratio);
  }
  // The kind of a layer, or of an MTP module (index >= num_hidden_layers).
  AttentionKind Kind(int layer) const {
    return layer < static_cast<int>(layers.size()) ? layers[layer] : AttentionKind::kWindow;
  }
  bool IsHash(int layer) const {
    return layer < static_cast<int>(hash_layers.size()) && hash_layers[layer] != 0;
  }
};

// Null for other kinds of models.
inline const DeepseekV4Shape* FindV4Shape(const ModelConfig& config) {
  return std::any_cast<DeepseekV4Shape>(&config.own);
}

// For callers that know the kind.
inline const DeepseekV4Shape& V4ShapeOf(const ModelConfig& config) {
  const DeepseekV4Shape* const shape = FindV4Shape(config);
  CHECK(shape != nullptr) << config.architecture << " is another kind of model";
  return *shape;
}

}  // namespace foredraft
