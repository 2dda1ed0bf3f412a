#pragma once

// The families of checkpoints that compute as DeepSeek-V3 does, a row each: the defaults of fields that their
// config.json may omit, and their other differences.

#include <optional>
#include <string_view>

#include "engine/model/model_kind.h"

namespace foredraft {

// Values of absent fields, as in the family's configuration class. nullopt: config.json must have the field,
// because no source says what its absence means.
struct AbsentFields {
  std::optional<int> q_lora_rank;
  std::optional<int> n_routed_experts;
  std::optional<int> first_k_dense_replace;
  std::optional<int> n_shared_experts;
  std::optional<int> n_group;
  std::optional<int> topk_group;
  std::optional<bool> norm_topk_prob;
  std::optional<double> routed_scaling_factor;
  double rms_norm_eps = 1e-6;
};

struct V3Family {
  ModelName name;
  AbsentFields absent;
  // DeepSeek sparse attention: an indexer keeps the index_topk best positions.
  bool sparse_attention = false;
  // The indexer's RoPE has pairs (2i, 2i + 1); else the halves of the rotated part are paired.
  bool index_interleaved = false;
  // MTP modules have a dense MLP where DeepSeek-V3's have experts.
  bool dense_mtp = false;
  // A file next to the shards that has the MTP modules and that the index may omit; empty: none.
  std::string_view mtp_file;
  // ModelConfig::tensor_prefix
  std::string_view tensor_prefix;
  // ModelKind::chat_format
  std::string_view chat_format = "deepseek_r1";
};

inline constexpr V3Family kV3Families[] = {
    // DeepSeek-V3, R1 and V3.1, and checkpoints of other vendors under their names: GigaChat3, Moonlight.
    // Defaults: transformers, models/deepseek_v3, and the configuration_deepseek.py published with
    // DeepSeek-V3, which agree.
    {.name = {"DeepseekV3ForCausalLM", "deepseek_v3"},
     .absent = {.q_lora_rank = 1536,
                .n_routed_experts = 256,
                .first_k_dense_replace = 3,
                .n_shared_experts = 1,
                .n_group = 8,
                .topk_group = 4,
                .norm_topk_prob = true,
                .routed_scaling_factor = 2.5}},
    // Kimi-K2 (-Instruct, -0905, -Thinking): DeepSeek-V3 without MTP modules. No implementation has defaults
    // for this model_type, so its config.json must have every field.
    {.name = {"DeepseekV3ForCausalLM", "kimi_k2"}, .chat_format = ""},
    // JoyAI-LLM-Flash: DeepSeek-V3 with a dense MTP module, which is published in a file of its own next to
    // the shards. Sources: the model's files in SGLang (joyai_llm_flash_nextn.py, weight_utils.py) and in
    // vLLM (joyai_llm_flash_mtp.py); they have no defaults, so its config.json has to have every field.
    {.name = {"DeepseekV3ForCausalLM", "joyai_llm_flash"},
     .dense_mtp = true,
     .mtp_file = "mtp-1-of-1.safetensors"},
    // DeepSeek-V3.2, V3.2-Exp and V3.2-Speciale: DeepSeek-V3 with sparse attention. Defaults: transformers,
    // models/deepseek_v32.
    {.name = {"DeepseekV32ForCausalLM", "deepseek_v32"},
     .absent = {.q_lora_rank = 1536,
                .n_routed_experts = 256,
                .first_k_dense_replace = 3,
                .n_shared_experts = 1,
                .n_group = 8,
                .topk_group = 4,
                .norm_topk_prob = true,
                .routed_scaling_factor = 2.5},
     .sparse_attention = true,
     .chat_format = "deepseek_v32"},
    // GLM-4.7-Flash: the mathematics and the tensor names of DeepSeek-V3, MTP modules included. Defaults:
    // transformers, models/glm4_moe_lite. Its config.json has no scoring_func (sigmoid) and no BOS.
    // rms_norm_eps is 1e-5, but the two latent norms use 1e-6 as transformers builds them (vLLM and SGLang
    // use rms_norm_eps there).
    {.name = {"Glm4MoeLiteForCausalLM", "glm4_moe_lite"},
     .absent = {.q_lora_rank = 768,
                .n_routed_experts = 64,
                .first_k_dense_replace = 1,
                .n_shared_experts = 1,
                .n_group = 1,
                .topk_group = 1,
                .norm_topk_prob = true,
                .routed_scaling_factor = 1.8,
                .rms_norm_eps = 1e-5},
     .chat_format = ""},
    // GLM-5, 5.1, 5.2 and 5.3: DeepSeek-V3.2's layer with one group of experts. Defaults: transformers,
    // models/glm_moe_dsa. From 5.2 on, some layers have no indexer and use the selection of a layer below.
    {.name = {"GlmMoeDsaForCausalLM", "glm_moe_dsa"},
     .absent = {.q_lora_rank = 2048,
                .n_routed_experts = 256,
                .first_k_dense_replace = 3,
                .n_shared_experts = 1,
                .n_group = 1,
                .topk_group = 1,
                .norm_topk_prob = true,
                .routed_scaling_factor = 2.5,
                .rms_norm_eps = 1e-5},
     .sparse_attention = true,
     .index_interleaved = true,
     .chat_format = ""},
    // Kimi-K2.5, K2.6 and K2.7-Code as text models: Kimi-K2 nested in a multimodal model, the vision part of
    // which is not read. Every field has to be present, as for Kimi-K2.
    {.name = {"KimiK25ForConditionalGeneration", "kimi_k25", "text_config"},
     .tensor_prefix = "language_model.",
     .chat_format = ""},
};

}  // namespace foredraft
