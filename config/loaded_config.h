#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "config/config.h"

namespace foredraft {

// A configuration, and where each key was set: "r1.yaml:12", "--set", "FOREDRAFT_MODEL", or
// "r1.yaml:3 (tensor_parallel_size)" through a key of another program. Keys with defaults are not in origins.
struct LoadedConfig {
  Config config;
  std::map<std::string, std::string> origins;
  std::string file;
  std::vector<std::string> notes;     // what each key of another program became, a line each
  std::vector<std::string> warnings;  // values that were cut to what another key allows
};

// Where a key was set: "r1.yaml:12", "--set", a variable; "default" if nowhere.
std::string OriginOf(const LoadedConfig& loaded, const std::string& path);

// INVALID_ARGUMENT in the usual form, naming where `path` was set.
absl::Status RefuseKey(const LoadedConfig& loaded, const std::string& path, const std::string& value,
                       const std::string& allowed);

}  // namespace foredraft
