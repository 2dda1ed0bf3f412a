#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace foredraft {

// The expression of a format that is enforced; nothing for any other, which is an annotation. Strings of an
// enforced format are valid; a few valid ones are left out (docs/structured-output.md).
std::optional<std::string> FormatExpression(std::string_view format);

// Formats of JSON Schema that are not enforced and not ignored either: a schema that asks for one is refused.
bool IsRefusedFormat(std::string_view format);

}  // namespace foredraft
