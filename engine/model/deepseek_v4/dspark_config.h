#pragma once

// The fields by which config.json of a DeepSeek-V4 checkpoint says that it drafts with DSpark
// (docs/deepseek-v4.md section 1): stages under `mtp.` in the place of MTP modules.

#include "engine/model/dspark_shape.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"

namespace foredraft {

// All names that ReadDSpark reads.
inline constexpr const char* kDSparkFields[] = {"dspark_block_size", "dspark_noise_token_id",
                                                "dspark_target_layer_ids", "dspark_markov_rank"};

// Nothing where none of them is there. Refuses some without the others. config: its sizes are read.
std::optional<DSparkShape> ReadDSpark(JsonFields& fields, const ModelConfig& config);

}  // namespace foredraft
