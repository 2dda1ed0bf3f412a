#pragma once

// DeepSeek-V4's config.json, as DeepSeek ships it and as transformers saves it.

#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"
#include "nlohmann/json.hpp"

namespace foredraft {

// Reads everything except quantization_config's format and the token ids, which are read as for other models.
// Optional fields that are absent have the values of transformers' DeepseekV4Config. `fields` keeps the first
// fault; the result is then unspecified.
void ReadDeepseekV4(JsonFields& fields, ModelConfig& config);

// If config.projections is an FP8 or FP4 format, sets projections to FP8 blocks with powers of two as scales
// and, for FP4, routed experts to MXFP4. Other formats stay.
void ChooseDeepseekV4Formats(ModelConfig& config);

// Writes expert_dtype, and scale_fmt of quantization_config.
void WriteDeepseekV4Formats(const ModelConfig& config, nlohmann::ordered_json& config_json);

}  // namespace foredraft
