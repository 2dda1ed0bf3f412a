#pragma once

// DeepSeek-V3, R1 and V3.1, and checkpoints of other vendors under their names: GigaChat3, Moonlight.
// Defaults: transformers, models/deepseek_v3, and the configuration_deepseek.py published with DeepSeek-V3,
// which agree.

#include "config/model_family.h"

namespace foredraft {

inline constexpr ModelFamily kDeepseekV3 = {.architecture = "DeepseekV3ForCausalLM",
                                            .model_type = "deepseek_v3",
                                            .absent = {.q_lora_rank = 1536,
                                                       .n_routed_experts = 256,
                                                       .first_k_dense_replace = 3,
                                                       .n_shared_experts = 1,
                                                       .n_group = 8,
                                                       .topk_group = 4,
                                                       .norm_topk_prob = true,
                                                       .routed_scaling_factor = 2.5}};

}  // namespace foredraft
