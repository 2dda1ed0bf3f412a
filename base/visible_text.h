#pragma once

// Text from outside (clients, files, models) as it may stand in a log line or on a terminal: nothing in it
// can begin a line, move the cursor, or change the order in which other text is read.

#include <string>
#include <string_view>

namespace foredraft {

// Escapes, as in \x1b or \u202e, the control characters C0, DEL and C1, the line and paragraph separators
// (U+2028, U+2029), those that change the direction of text (U+202A..U+202E, U+2066..U+2069), and bytes that
// are not UTF-8, some of which terminals read as C1. The characters of `kept`, such as "\n\t", stay.
std::string VisibleText(std::string_view text, std::string_view kept = "");

// A text of at most `max_bytes` >= 3: `text`, or as many of its first characters as leave room for "...".
std::string ShortText(std::string_view text, size_t max_bytes);

}  // namespace foredraft
