#pragma once

#include <functional>
#include <optional>

#include "grammar/json_source.h"

namespace foredraft {

// The target of a $ref, or nullptr.
using ReferenceResolver = std::function<const JsonValue*(const JsonValue& reference)>;

// What `schema`, which has `not`, says by it, as a schema without. Each call takes away one `not`: the result
// may have others further down. Nothing where the keyword below `not` has no complement, or ExcludesStrings.
std::optional<JsonValue> NegatedSchema(const JsonValue& schema, const ReferenceResolver& resolve);

// Whether `schema` is of strings alone, and its `not` has one pattern or a list of strings.
bool ExcludesStrings(const JsonValue& schema);

}  // namespace foredraft
