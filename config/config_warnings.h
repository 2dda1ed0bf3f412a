#pragma once

// What is allowed, and probably not meant.

#include <string>
#include <vector>

#include "config/config_reader.h"
#include "config/model_limits.h"

namespace foredraft {

// A line each: "<where>: <key>: <value>: <what follows from it, and what to do>". Defaults are resolved.
std::vector<std::string> ConfigWarnings(const LoadedConfig& loaded, const ModelLimits& model);

// Where a key was set: "r1.yaml:12", "--set", a variable; "default" if nowhere.
std::string OriginOf(const LoadedConfig& loaded, const std::string& path);

}  // namespace foredraft
