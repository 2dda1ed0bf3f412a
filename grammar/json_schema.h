#pragma once

// Turns a JSON Schema into nodes that match its JSON. docs/structured-output.md says what each keyword means
// here.

#include <string_view>

#include "absl/status/statusor.h"
#include "grammar/ir.h"
#include "grammar/json_source.h"
#include "grammar/json_style.h"

namespace foredraft {

// INVALID_ARGUMENT names the JSON pointer, the keyword and what is allowed.
absl::StatusOr<NodeId> AddJsonSchema(Ir& ir, std::string_view schema, const JsonStyle& style);
// Adds a schema inside of another document. References in the schema are relative to the schema itself.
absl::StatusOr<NodeId> AddJsonSchema(Ir& ir, const JsonValue& schema, const JsonStyle& style);

}  // namespace foredraft
