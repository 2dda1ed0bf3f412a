#ifndef FOREDRAFT_CONFIG_YAML_TREE_H_
#define FOREDRAFT_CONFIG_YAML_TREE_H_

// YAML as a tree that remembers lines. Built from yaml-cpp's event stream, because its own tree forgets
// duplicate keys. Caps: one document, depth 32, 10,000 nodes after aliases are expanded, a megabyte of text.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace foredraft {

struct YamlEntry;

struct YamlNode {
  enum Kind { kNull, kScalar, kList, kMap } kind = kNull;
  int line = 0;                    // 1-based
  bool quoted = false;             // kScalar: a string whatever it looks like
  std::string text;                // kScalar
  std::vector<YamlNode> items;     // kList
  std::vector<YamlEntry> entries;  // kMap, in order

  // As an error message shows it: the scalar (quoted if it was), "a list", "a mapping", "null".
  std::string Show() const;
};

struct YamlEntry {
  std::string key;
  YamlNode value;  // its line is the key's
};

// Text from outside as part of a one-line message: cut after 80 bytes, control characters as '?'.
std::string ShowText(std::string_view text);

// INVALID_ARGUMENT "<file>:<line>: <what>"; a duplicate key is named by its path.
absl::StatusOr<YamlNode> ParseYaml(const std::string& text, const std::string& file);

}  // namespace foredraft

#endif  // FOREDRAFT_CONFIG_YAML_TREE_H_
