#pragma once

// config.json of DeepSeek-V3 and of the families that compute as it does.

#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"

namespace foredraft {

struct V3Family;

// The row of a configuration of this kind.
const V3Family& V3FamilyOf(const ModelConfig& config);

// Reads everything except quantization_config and the token ids, which are read as for other models.
// config.architecture and config.model_type must be set. `fields` keeps the first fault; the result is then
// unspecified.
void ReadDeepseekV3(JsonFields& fields, ModelConfig& config);

}  // namespace foredraft
