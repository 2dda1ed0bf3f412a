#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace foredraft {

// The expression of an enforced format; nothing for other formats, which are annotations. All strings that it
// matches are valid; it leaves out a few valid ones (docs/structured-output.md).
std::optional<std::string> FormatExpression(std::string_view format);

// Some strings of the format, none longer than max_length, as an expression whose automaton does not grow
// with the length. Nothing for formats that need no such expression, for short lengths, and for a min_length
// that it would not keep.
std::optional<std::string> BoundedFormatExpression(std::string_view format, int64_t min_length,
                                                   int64_t max_length);

// An expression with a small automaton, which counts no characters. Its matches of up to kShortFormatChars
// characters are valid. Nothing for formats that need none.
inline constexpr int64_t kShortFormatChars = 63;
std::optional<std::string> ShortFormatExpression(std::string_view format);

// Whether a schema that asks for this format is refused, because the format is neither enforced nor ignored.
bool IsRefusedFormat(std::string_view format);

}  // namespace foredraft
