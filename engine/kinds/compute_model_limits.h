#pragma once

#include "config/config.h"
#include "config/model_limits.h"
#include "engine/model/model_config.h"
#include "kernels/kv_row.h"

namespace foredraft {

// What a configuration for this model is checked against.
ModelLimits ComputeModelLimits(const ModelConfig& model);
// What kv_cache_config says of the cache's rows.
KvFormat CacheFormat(const Config& config);

}  // namespace foredraft
