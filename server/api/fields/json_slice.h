#pragma once

// Where values stand in the text of a JSON document: for texts that must stay as the client wrote them, with
// the order of their keys and the spelling of their numbers. The documents are valid JSON, without a key that
// stands twice in an object (ParseJson).

#include <string_view>
#include <vector>

namespace foredraft {

// The text of the value of `key` in the text of an object, or an empty text where it has none.
std::string_view MemberText(std::string_view object, std::string_view key);
// The texts of the members of a list; empty where `list` is none.
std::vector<std::string_view> ElementTexts(std::string_view list);

}  // namespace foredraft
