#pragma once

#include <string>

#include "config/config_reader.h"

namespace foredraft {

// The configuration in force as YAML, every key with its help, type, allowed values and default above it and
// with its origin behind it. Keys of blocks that are off stand as comments. Read back it gives the same
// Config.
std::string ExplainYaml(const LoadedConfig& loaded);

}  // namespace foredraft
