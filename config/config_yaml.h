#pragma once

// A Config as YAML text, and the difference between two of them.

#include <string>
#include <vector>

#include "config/config.h"

namespace foredraft {

// Every key with its value, in the order of config_fields, null where a value is still unset. Reading it back
// gives the same Config.
std::string EmitYaml(const Config& config);

// The keys that a reload finds changed, by path.
struct ConfigDifference {
  std::vector<std::string> reloaded;      // take effect between two iterations
  std::vector<std::string> need_restart;  // keep the value they were started with
};

// `started` is the configuration the process was started with, `current` what earlier reloads made of it,
// `next` the file as it is now. max_draft_len may go down and up again, not above `started`'s.
ConfigDifference ReloadableDifference(const Config& started, const Config& current, const Config& next);

}  // namespace foredraft
