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

// What `schema` says by its `keyword`, one of RewrittenKeywords, as a schema without it. Each call takes away
// one level: the result may have such keywords further down. Nothing where other keywords cannot say it, and
// for a `not` that ExcludesStrings or ExcludesIntegers.
std::optional<JsonValue> RewriteKeyword(const JsonValue& schema, std::string_view keyword,
                                        const ReferenceResolver& resolve);

// `schema` below `not`.
JsonValue NotSchema(const JsonValue& schema);

// Whether `schema` is of strings alone, and its `not` has one pattern or a list of strings.
bool ExcludesStrings(const JsonValue& schema);
// Whether `schema` is of numbers alone, and its `not` of integers, as {"multipleOf": 1}.
bool ExcludesIntegers(const JsonValue& schema);

}  // namespace foredraft
