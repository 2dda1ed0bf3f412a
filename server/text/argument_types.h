#pragma once

// What a tool's schema says of the values of its arguments. In formats that write a string like any other
// value, this decides whether a text is a string.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat_message.h"

namespace foredraft {

// The values that an argument may have, by its schema; wider than the schema where that says more than types
// and enumerated values.
struct ArgumentType {
  unsigned types = ~0u;  // bits of JSON's types
  std::optional<std::vector<nlohmann::json>> values;

  bool is_string() const;
  // The JSON value of an argument that was written as `text`: the text itself where it is JSON of one of the
  // types, else a string.
  std::string JsonOf(const std::string& text) const;
};

// Owner: one call; not thread-safe. A plain value.
class ArgumentTypes {
 public:
  ArgumentTypes() = default;
  explicit ArgumentTypes(const ChatTool& tool);

  // Follows `$ref` and allOf. Any type where the schema does not say, or is too large to be read here.
  ArgumentType Of(const std::string& key) const;
  // Whether no property is declared and any may come, so that a key may also come twice.
  bool is_dictionary() const;

 private:
  nlohmann::json schema_;
};

}  // namespace foredraft
