#pragma once

// What is allowed, and probably not meant.

#include <string>
#include <vector>

#include "config/loaded_config.h"
#include "config/model_limits.h"

namespace foredraft {

// A line each: "<where>: <key>: <value>: <what follows from it, and what to do>". Defaults are resolved.
std::vector<std::string> ConfigWarnings(const LoadedConfig& loaded, const ModelLimits& model);

}  // namespace foredraft
