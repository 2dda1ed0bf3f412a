#pragma once

// JoyAI-LLM-Flash: DeepSeek-V3 with a dense MTP module, which is published in a file of its own beside the
// shards. Sources: the model's files in SGLang (joyai_llm_flash_nextn.py, weight_utils.py) and in vLLM
// (joyai_llm_flash_mtp.py); they have no defaults, so its config.json has to have every field.

#include "config/model_family.h"

namespace foredraft {

inline constexpr ModelFamily kJoyaiLlmFlash = {.architecture = "DeepseekV3ForCausalLM",
                                               .model_type = "joyai_llm_flash",
                                               .dense_mtp = true,
                                               .mtp_file = "mtp-1-of-1.safetensors"};

}  // namespace foredraft
