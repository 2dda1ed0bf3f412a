#pragma once

// The general categories of Unicode, by the tables of PCRE2. A code point that PCRE2's version of Unicode
// does not assign is in no category here, because a later version may put it into any.

#include <optional>
#include <string_view>

#include "grammar/char_set.h"

namespace foredraft {

// By one of its names, as "Lu", "Uppercase_Letter" and "gc=Lu"; a category of several, as "L", has them all.
// Nothing: there is no such category, or it is that of surrogates or of no characters. Thread-safe.
std::optional<CharSet> CategoryChars(std::string_view name);

// The characters in no category.
const CharSet& UnassignedChars();

}  // namespace foredraft
