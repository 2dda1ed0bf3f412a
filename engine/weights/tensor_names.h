#ifndef FOREDRAFT_ENGINE_WEIGHTS_TENSOR_NAMES_H_
#define FOREDRAFT_ENGINE_WEIGHTS_TENSOR_NAMES_H_

// Which tensors a DeepseekV3 checkpoint has: Hugging Face's names, shapes, and what element types each may
// have.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"

namespace foredraft {

// What a tensor is for, and so which dtypes it may have.
enum class TensorKind {
  kVector,  // norm weight or bias: F32, BF16
  kMatrix,  // embedding, head, router: F32, BF16
  kLinear,  // a projection: F32, BF16, and F8_E4M3 with <name>_scale_inv where the checkpoint has FP8 blocks
  kCopy,    // a copy of the embedding or head: F32, BF16; may be absent, never loaded
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  TensorKind kind;
  int expert = -1;  // the routed expert it belongs to, -1: none
};

// All tensors of a checkpoint with `mtp_module_count` MTP modules, in the order of the layers. Scale tensors
// are not listed: they follow from a kLinear's dtype.
std::vector<TensorSpec> ExpectedTensors(const ModelConfig& config, int mtp_module_count);

// Tensors that old converters left behind and nobody reads: rotary_emb.inv_freq.
bool IsIgnoredTensor(std::string_view name);

// "model.layers.3."; MTP module i is layer num_hidden_layers + i.
std::string LayerPrefix(int layer);
// "model.layers.3.mlp.experts.17."
std::string ExpertPrefix(int layer, int expert);

// [rows, columns] of the scale grid of an FP8 weight of this shape.
std::vector<int64_t> ScaleShape(const ModelConfig& config, const std::vector<int64_t>& weight_shape);

inline constexpr char kScaleSuffix[] = "_scale_inv";
inline constexpr char kEmbedTokens[] = "model.embed_tokens.weight";
inline constexpr char kFinalNorm[] = "model.norm.weight";
inline constexpr char kLmHead[] = "lm_head.weight";

// After a layer's prefix.
inline constexpr char kInputLayernorm[] = "input_layernorm.weight";
inline constexpr char kPostAttentionLayernorm[] = "post_attention_layernorm.weight";
inline constexpr char kQProj[] = "self_attn.q_proj.weight";
inline constexpr char kQAProj[] = "self_attn.q_a_proj.weight";
inline constexpr char kQABias[] = "self_attn.q_a_proj.bias";
inline constexpr char kQALayernorm[] = "self_attn.q_a_layernorm.weight";
inline constexpr char kQBProj[] = "self_attn.q_b_proj.weight";
inline constexpr char kKvAProj[] = "self_attn.kv_a_proj_with_mqa.weight";
inline constexpr char kKvABias[] = "self_attn.kv_a_proj_with_mqa.bias";
inline constexpr char kKvALayernorm[] = "self_attn.kv_a_layernorm.weight";
inline constexpr char kKvBProj[] = "self_attn.kv_b_proj.weight";
inline constexpr char kOProj[] = "self_attn.o_proj.weight";
inline constexpr char kOBias[] = "self_attn.o_proj.bias";
inline constexpr char kRouter[] = "mlp.gate.weight";
inline constexpr char kRouterBias[] = "mlp.gate.e_score_correction_bias";
inline constexpr char kEnorm[] = "enorm.weight";
inline constexpr char kHnorm[] = "hnorm.weight";
inline constexpr char kEhProj[] = "eh_proj.weight";
inline constexpr char kSharedHeadNorm[] = "shared_head.norm.weight";
inline constexpr char kMtpEmbedCopy[] = "embed_tokens.weight";
inline constexpr char kMtpHeadCopy[] = "shared_head.head.weight";

// After "mlp.", "mlp.shared_experts." or an expert's prefix.
inline constexpr char kGateProj[] = "gate_proj.weight";
inline constexpr char kUpProj[] = "up_proj.weight";
inline constexpr char kDownProj[] = "down_proj.weight";

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_WEIGHTS_TENSOR_NAMES_H_
