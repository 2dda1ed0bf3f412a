#pragma once

// DeepSeek-V3.2 and V3.2-Exp: DeepSeek-V3 with sparse attention. Defaults: transformers, models/deepseek_v32.

#include "config/model_family.h"

namespace foredraft {

inline constexpr ModelFamily kDeepseekV32 = {.architecture = "DeepseekV32ForCausalLM",
                                             .model_type = "deepseek_v32",
                                             .absent = {.q_lora_rank = 1536,
                                                        .n_routed_experts = 256,
                                                        .first_k_dense_replace = 3,
                                                        .n_shared_experts = 1,
                                                        .n_group = 8,
                                                        .topk_group = 4,
                                                        .norm_topk_prob = true,
                                                        .routed_scaling_factor = 2.5},
                                             .sparse_attention = true};

}  // namespace foredraft
