#pragma once

#include "config/model_limits.h"
#include "engine/model/model_config.h"

namespace foredraft {

// What a configuration for this model is checked against.
ModelLimits ModelLimitsOf(const ModelConfig& model);

}  // namespace foredraft
