#pragma once

#include "config/config.h"
#include "config/model_limits.h"
#include "engine/model/model_config.h"
#include "kernels/dtype.h"

namespace foredraft {

// What a configuration for this model is checked against.
ModelLimits ModelLimitsOf(const ModelConfig& model);
// The dtype of kv_cache_config.dtype.
DType CacheDType(const Config& config);

}  // namespace foredraft
