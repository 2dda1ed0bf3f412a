#pragma once

// A client's JSON text as a tree that keeps the order of keys and the spelling of numbers.

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

// "#/properties/a": the place of the value in its tree. A value that is not among its parent's items was made
// from the parent and has the parent's place.
std::string JsonPointer(const JsonValue& value);

// Writes `text` as a JSON string with its quotes; escapes only the characters that JSON requires it for.
std::string QuoteJson(std::string_view text);

}  // namespace foredraft
