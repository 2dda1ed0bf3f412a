#pragma once

// Keywords that are rewritten to others, which the rest of the compiler knows.

#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "grammar/json_source.h"

namespace foredraft {

// The target of a $ref, or nullptr.
using ReferenceResolver = std::function<const JsonValue*(const JsonValue& reference)>;

// not, if, dependencies, dependentRequired, dependentSchemas, propertyNames.
std::span<const std::string_view> RewrittenKeywords();

// Rewrites `keyword` of `schema`, one of RewrittenKeywords, to a schema without it. Each call removes one
// level: the result may have such keywords further down. Returns nothing where other keywords cannot express
// it, and for a `not` for which ExcludesStrings or ExcludesIntegers is true.
std::optional<JsonValue> RewriteKeyword(const JsonValue& schema, std::string_view keyword,
                                        const ReferenceResolver& resolve);

// {"not": schema}.
JsonValue NotSchema(const JsonValue& schema);

// Whether `schema` is of strings alone, and its `not` has one pattern or a list of strings.
bool ExcludesStrings(const JsonValue& schema);
// Whether `schema` is of numbers alone, and its `not` is {"multipleOf": 1}, that is, integers.
bool ExcludesIntegers(const JsonValue& schema);

}  // namespace foredraft
