#pragma once

// DeepSeek-V4's config.json, as DeepSeek ships it and as transformers saves it.

#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"

namespace foredraft {

// Reads everything but quantization_config's format and the token ids, which are read as for other models.
// Absent fields have the values of transformers' DeepseekV4Config, but for the kinds of the layers, which
// have to be there. `fields` keeps the first fault; the result is then unspecified.
void ReadDeepseekV4(JsonFields& fields, ModelConfig& config);

}  // namespace foredraft
