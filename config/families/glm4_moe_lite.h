#pragma once

// GLM-4.7-Flash: the mathematics and the tensor names of DeepSeek-V3, MTP modules included. Defaults:
// transformers, models/glm4_moe_lite. Its config.json has no scoring_func (sigmoid) and no BOS.
// rms_norm_eps is 1e-5, but the two latent norms use 1e-6 as transformers builds them (vLLM and SGLang use
// rms_norm_eps there).

#include "config/model_family.h"

namespace foredraft {

inline constexpr ModelFamily kGlm4MoeLite = {.architecture = "Glm4MoeLiteForCausalLM",
                                             .model_type = "glm4_moe_lite",
                                             .absent = {.q_lora_rank = 768,
                                                        .n_routed_experts = 64,
                                                        .first_k_dense_replace = 1,
                                                        .n_shared_experts = 1,
                                                        .n_group = 1,
                                                        .topk_group = 1,
                                                        .norm_topk_prob = true,
                                                        .routed_scaling_factor = 1.8,
                                                        .rms_norm_eps = 1e-5}};

}  // namespace foredraft
