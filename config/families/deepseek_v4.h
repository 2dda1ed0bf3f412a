#pragma once

// DeepSeek-V4 (Flash, Pro) with MTP modules. Its fields and their defaults are read by
// config/deepseek_v4_fields.h.

#include "config/model_family.h"

namespace foredraft {

inline constexpr ModelFamily kDeepseekV4 = {
    .architecture = "DeepseekV4ForCausalLM", .model_type = "deepseek_v4", .deepseek_v4 = true};

}  // namespace foredraft
