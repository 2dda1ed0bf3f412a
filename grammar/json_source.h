#pragma once

// JSON text of a client as a tree that keeps the order of keys and the spelling of numbers.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace foredraft {

struct JsonValue {
  enum Kind : uint8_t { kNull, kBoolean, kNumber, kString, kArray, kObject };
  Kind kind = kNull;
  bool boolean = false;
  std::string text;              // of a string; a number as the source spells it
  std::vector<JsonValue> items;  // of an array; of an object the values of `keys`
  std::vector<std::string> keys;
  const JsonValue* parent = nullptr;  // nullptr at the root

  // The value of an object's key, or nullptr.
  const JsonValue* Find(std::string_view key) const;
  bool is_object() const { return kind == kObject; }
  bool is_array() const { return kind == kArray; }
  bool is_string() const { return kind == kString; }
  bool is_number() const { return kind == kNumber; }
};

// INVALID_ARGUMENT: not JSON at a byte, a key given twice, nesting above max_depth. The tree does not move.
absl::StatusOr<std::unique_ptr<const JsonValue>> ParseJsonSource(std::string_view text, int max_depth);

// Sets the parents of all values below `value`.
void SetParents(JsonValue& value);

// "#/properties/a": where the value is in its tree. A value that its parent does not have was made from the
// parent, and is where that is.
std::string JsonPointer(const JsonValue& value);

// The text of a string value as JSON spells it where there is a choice: raw, escaped where it must be. With
// its quotes.
std::string QuoteJson(std::string_view text);

}  // namespace foredraft
