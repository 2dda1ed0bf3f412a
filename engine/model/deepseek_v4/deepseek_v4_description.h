#pragma once

// The tensors of a DeepSeek-V4 checkpoint (docs/deepseek-v4.md sections 7 and 8) under DeepSeek's names, and
// how they become V4Weights. Transformers' names for them: deepseek_v4_names.h.

#include "engine/checkpoint/model_description.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model/model_config.h"

namespace foredraft {

// MTP module i is mtp.i. Checkpoints saved by transformers lack the modules.
ModelDescription DescribeDeepSeekV4(const ModelConfig& config, int mtp_module_count, const ModelShard& shard);

}  // namespace foredraft
