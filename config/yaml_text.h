#pragma once

// YAML from outside, checked before it is used: one document, no duplicate keys, and caps on its size.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "yaml-cpp/yaml.h"

namespace foredraft {

// At most a megabyte of text, 32 levels and 10,000 values, aliases expanded; every key is a scalar and unique
// in its mapping. Empty text is a null node. INVALID_ARGUMENT is "<file>:<line>: <what>"; a duplicate key is
// named by its path.
absl::StatusOr<YAML::Node> ParseYaml(const std::string& text, const std::string& file);

int LineOf(const YAML::Node& node);     // 1-based
bool IsQuoted(const YAML::Node& node);  // a string, whatever the text looks like

// A node as an error message shows it: the scalar (quoted if it was), "a list", "a mapping", "null".
std::string ShowYaml(const YAML::Node& node);
// A key's path, if it looks like one. A file that is no configuration, such as one that a link leads to by
// mistake, may hold secrets, which must not reach the log.
std::string ShowKeyPath(std::string_view path);

// Text from outside as part of a one-line message: cut after 80 bytes, control characters as '?'.
std::string ShowText(std::string_view text);

}  // namespace foredraft
