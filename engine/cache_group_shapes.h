#pragma once

#include <vector>

#include "engine/engine_options.h"
#include "engine/model/model_config.h"
#include "scheduler/cache_group_shape.h"

namespace foredraft {

// What the scheduler has to know of the engine's cache groups, the history first. options.block_count: known,
// not 0.
std::vector<CacheGroupShape> CacheGroupShapesOf(const EngineOptions& options, const ModelConfig& config);

}  // namespace foredraft
