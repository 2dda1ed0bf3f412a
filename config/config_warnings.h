#pragma once

// Warns of values that are allowed, but probably not meant.

#include <string>
#include <vector>

#include "config/loaded_config.h"
#include "config/model_limits.h"

namespace foredraft {

// A line each: "<where>: <key>: <value>: <what follows from it, and what to do>". Defaults are resolved.
// `host_cores`: the cores that the ranks of this host share (HostResources); 0: the configuration is another
// host's.
std::vector<std::string> ConfigWarnings(const LoadedConfig& loaded, const ModelLimits& model,
                                        int host_cores = 0);

}  // namespace foredraft
