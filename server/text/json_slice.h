#pragma once

// Finds the texts of values in a JSON document, for texts that must stay as the client wrote them, with the
// order of their keys and the spelling of their numbers. The documents are valid JSON, without a key that
// stands twice in an object (ParseJson).

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foredraft {

// The names of the members of an object, without escapes, and the texts of their values, in the order of the
// text; empty where `object` is no object.
std::vector<std::pair<std::string, std::string_view>> MemberTexts(std::string_view object);
// The text of the value of `key` in the text of an object, or an empty text where it has none.
std::string_view MemberText(std::string_view object, std::string_view key);
// The texts of the members of a list; empty where `list` is no list.
std::vector<std::string_view> ElementTexts(std::string_view list);

}  // namespace foredraft
