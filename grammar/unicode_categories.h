#pragma once

// The general categories of Unicode, by the tables of PCRE2. A code point that PCRE2's version of Unicode
// does not assign is in no category here, because a later version may put it into any.

#include <optional>
#include <string_view>

#include "grammar/char_set.h"

namespace foredraft {

// Takes any name of a category ("Lu", "Uppercase_Letter", "gc=Lu"); a category of several, such as "L", has
// the characters of all. Returns nothing for unknown names, surrogates (Cs) and unassigned code points (Cn).
// Thread-safe.
std::optional<CharSet> CategoryChars(std::string_view name);

// The characters in no category.
const CharSet& UnassignedChars();

}  // namespace foredraft
