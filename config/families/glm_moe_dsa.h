#pragma once

// GLM-5: DeepSeek-V3.2's layer with one group of experts. Defaults: transformers, models/glm_moe_dsa.
// From 5.2 on, some layers have no indexer of their own and share the selection of a layer below.

#include "config/model_family.h"

namespace foredraft {

inline constexpr ModelFamily kGlmMoeDsa = {.architecture = "GlmMoeDsaForCausalLM",
                                           .model_type = "glm_moe_dsa",
                                           .absent = {.q_lora_rank = 2048,
                                                      .n_routed_experts = 256,
                                                      .first_k_dense_replace = 3,
                                                      .n_shared_experts = 1,
                                                      .n_group = 1,
                                                      .topk_group = 1,
                                                      .norm_topk_prob = true,
                                                      .routed_scaling_factor = 2.5,
                                                      .rms_norm_eps = 1e-5},
                                           .sparse_attention = true};

}  // namespace foredraft
