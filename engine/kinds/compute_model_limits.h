#pragma once

#include "config/config.h"
#include "config/model_limits.h"
#include "engine/model/model_config.h"
#include "kernels/kv_row.h"

namespace foredraft {

// The limits against which a configuration for this model is checked.
ModelLimits ComputeModelLimits(const ModelConfig& model);
// The format of cache rows that kv_cache_config sets.
KvFormat CacheFormat(const Config& config);

}  // namespace foredraft
