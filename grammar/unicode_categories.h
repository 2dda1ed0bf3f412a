#pragma once

// The general categories of Unicode, by the tables of PCRE2. Characters that its version of Unicode gives to
// nobody are in no category here: a later version may put them into any.

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
