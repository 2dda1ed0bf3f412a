#ifndef FOREDRAFT_CONFIG_MODEL_CONFIG_H_
#define FOREDRAFT_CONFIG_MODEL_CONFIG_H_

// The model's shape from a checkpoint's config.json (Hugging Face's field names, unchanged) and the defaults
// of its generation_config.json.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "config/pack_quantized.h"

namespace foredraft {

struct RopeScaling {  // type "yarn"; the only other accepted value is none
  double factor = 1;
  int original_max_position_embeddings = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
};

struct ModelConfig {
  std::string architecture;  // "DeepseekV3ForCausalLM"
  std::string model_type;    // "deepseek_v3"
  int vocab_size = 0;
  int hidden_size = 0;
  int num_hidden_layers = 0;
  int num_nextn_predict_layers = 0;  // MTP modules, at layers num_hidden_layers..
  int first_k_dense_replace = 0;
  int moe_layer_freq = 1;
  int intermediate_size = 0;
  int moe_intermediate_size = 0;
  int n_routed_experts = 0;
  int num_experts_per_tok = 0;
  int n_shared_experts = 0;
  int n_group = 1;
  int topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1;
  int num_attention_heads = 0;
  int q_lora_rank = 0;  // 0 = null: one q_proj
  int kv_lora_rank = 0;
  int qk_nope_head_dim = 0;
  int qk_rope_head_dim = 0;
  int v_head_dim = 0;
  double rms_norm_eps = 1e-6;
  // q_a_layernorm and kv_a_layernorm: transformers builds them with its class default, whatever rms_norm_eps
  // is.
  static constexpr double kLatentNormEps = 1e-6;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  bool rope_interleave = true;
  int max_position_embeddings = 0;
  bool attention_bias = false;
  bool tie_word_embeddings = false;
  int bos_token_id = -1;  // -1 = none
  std::vector<int> eos_token_ids;
  bool fp8_blocks = false;   // quantization_config: fp8, e4m3, dynamic
  int weight_block_n = 128;  // the only block the kernels have
  int weight_block_k = 128;
  PackQuantized pack_quantized;  // quantization_config: 4-bit codes in groups

  int qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  // Layer `index` has experts; MTP modules (index >= num_hidden_layers) follow the same rule.
  bool IsMoe(int index) const {
    return n_routed_experts > 0 && index >= first_k_dense_replace && index % moe_layer_freq == 0;
  }
  // Softmax scale: qk_head_dim^-0.5 times mscale(factor, mscale_all_dim)^2 (docs/deepseek-v3.md section 3.3).
  double AttentionScale() const;
  // Factor on cos and sin: mscale(factor, mscale) / mscale(factor, mscale_all_dim).
  double RopeMscale() const;
  // [qk_rope_head_dim / 2] inverse frequencies, YaRN applied at all lengths.
  std::vector<double> RopeInverseFrequencies() const;
};

// Sampling defaults of generation_config.json; absent fields stay unset.
struct GenerationConfig {
  std::optional<double> temperature;  // do_sample false = 0
  std::optional<double> top_p;
  std::optional<int> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::vector<int> eos_token_ids;  // empty = config.json's
};

// INVALID_ARGUMENT names file, field, value and what is allowed; unknown architectures are refused by name.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& config_json_path);
// The same from text; `file` names it in errors.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, const std::string& file);
// A missing file gives the defaults.
absl::StatusOr<GenerationConfig> ReadGenerationConfig(const std::string& path);
absl::StatusOr<GenerationConfig> ParseGenerationConfig(std::string_view json, const std::string& file);

}  // namespace foredraft

#endif  // FOREDRAFT_CONFIG_MODEL_CONFIG_H_
