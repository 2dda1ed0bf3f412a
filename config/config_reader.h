#pragma once

// Makes a checked Config from YAML, environment and --set. Strict: unknown and duplicate keys, wrong types
// and values out of range are refused with one line, "<file>:<line>: <path>: <value>, allowed <values>". For
// an override the line begins with "--set" or the name of the variable. All errors are INVALID_ARGUMENT, or
// NOT_FOUND if the file does not exist. Keys of TensorRT-LLM's files that are not foredraft's are translated,
// ignored or refused one by one (foreign_keys.h).
//
// Order: ReadConfig (or ParseConfig), then ReadModelConfig on config.model, then ResolveDefaults
// (config_defaults.h).

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config.h"
#include "config/config_errors.h"
#include "config/loaded_config.h"

namespace foredraft {

// "speculative_config.max_draft_len=3": a key path and a value in YAML.
struct ConfigOverride {
  std::string path;
  std::string value;
};

// A malformed --set is a usage error (exit 2), unlike a value that ParseConfig refuses (exit 1).
absl::StatusOr<ConfigOverride> ParseOverride(const std::string& text);

// The sources of a configuration; later members override earlier ones.
struct ConfigSources {
  std::string file;  // its name, for errors
  std::string text;
  // The process's variables FOREDRAFT_<PATH>, upper case, '.' as "__".
  std::map<std::string, std::string> environment;
  std::vector<ConfigOverride> overrides;  // of the command line; the last of a path wins
  // Where a relative path of `text` is looked up before the working directory; empty: nowhere.
  std::string directory = {};
  std::vector<std::string> warnings = {};  // from the writer of `text`, passed on to LoadedConfig
};

// Parses, and checks what can be checked without the model, including CheckConfig. A key that is refused
// keeps its default, so that the other keys can be checked too.
LoadedConfig ParseConfig(const ConfigSources& sources, ConfigErrors& errors);
// Like ParseConfig above, but returns ConfigErrors::First.
absl::StatusOr<LoadedConfig> ParseConfig(const ConfigSources& sources);

// The sources with the text of the file `path`; relative paths in it name files next to it, where those
// exist. NOT_FOUND: there is no such file.
absl::StatusOr<ConfigSources> ReadSources(const std::string& path,
                                          std::map<std::string, std::string> environment,
                                          std::vector<ConfigOverride> overrides);
absl::StatusOr<LoadedConfig> ReadConfig(const std::string& path,
                                        std::map<std::string, std::string> environment,
                                        std::vector<ConfigOverride> overrides);

}  // namespace foredraft
