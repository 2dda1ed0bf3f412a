#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace foredraft {

// The expression of a format that is enforced; nothing for any other, which is an annotation. Strings of an
// enforced format are valid; a few valid ones are left out (docs/structured-output.md).
std::optional<std::string> FormatExpression(std::string_view format);

// Some strings of the format, none longer than max_length, as an expression whose automaton does not grow
// with the length. Nothing for formats that need none, short lengths, and a min_length that it does not keep.
std::optional<std::string> BoundedFormatExpression(std::string_view format, int64_t min_length,
                                                   int64_t max_length);

// An expression with a small automaton, which counts no characters. Its matches of up to kShortFormatChars
// characters are of the format. Nothing for formats that need none.
inline constexpr int64_t kShortFormatChars = 63;
std::optional<std::string> ShortFormatExpression(std::string_view format);

// Formats of JSON Schema that are not enforced and not ignored either: a schema that asks for one is refused.
bool IsRefusedFormat(std::string_view format);

}  // namespace foredraft
