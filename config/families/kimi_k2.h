#pragma once

// Kimi-K2 (-Instruct, -0905): DeepSeek-V3 without MTP modules. No implementation has defaults of its own for
// this model_type, so its config.json has to have every field.

#include "config/model_family.h"

namespace foredraft {

inline constexpr ModelFamily kKimiK2 = {.architecture = "DeepseekV3ForCausalLM", .model_type = "kimi_k2"};

}  // namespace foredraft
