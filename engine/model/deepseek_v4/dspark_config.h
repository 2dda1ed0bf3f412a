#pragma once

// The config.json fields of a DeepSeek-V4 checkpoint that drafts with DSpark (docs/deepseek-v4.md section 1):
// its tensors under `mtp.` are stages instead of MTP modules.

#include "engine/model/dspark_shape.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"

namespace foredraft {

// All names that ReadDSpark reads.
inline constexpr const char* kDSparkFields[] = {"dspark_block_size", "dspark_noise_token_id",
                                                "dspark_target_layer_ids", "dspark_markov_rank"};

// nullopt if all these fields are absent. Refuses a part of them without the rest. config: its sizes must
// have been read.
std::optional<DSparkShape> ReadDSpark(JsonFields& fields, const ModelConfig& config);

}  // namespace foredraft
