#pragma once

#include <string>
#include <vector>

#include "config/config_reader.h"

namespace foredraft {

// The configuration in force as YAML, every key with its help, type, allowed values and default above it and
// with its origin after it. Keys of blocks that are off are commented out. Reading the text back gives the
// same Config.
std::string ExplainYaml(const LoadedConfig& loaded);

// "max_seq_len: 4096, r1.yaml:8" for each key in force that is not at its default; "derived"
// instead of a source for keys that nothing sets, because they follow from the machine or the model.
std::vector<std::string> KeysInForce(const LoadedConfig& loaded);

}  // namespace foredraft
