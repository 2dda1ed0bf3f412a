#pragma once

// Text in which added tokens may stand: they match by id, everything else by bytes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/ir.h"
#include "grammar/vocabulary.h"

namespace foredraft {

// The longest added token that the text begins with: its length and id.
std::optional<std::pair<size_t, int32_t>> AddedAt(std::string_view text, const Vocabulary& vocabulary);
// A literal cut at added tokens first: those parts match by id alone, the others by bytes.
NodeId AddMarkedLiteral(Ir& ir, std::string_view text, const Vocabulary& vocabulary);
// Whether an added token is in the text.
bool HasAddedToken(std::string_view text, const Vocabulary& vocabulary);

// Free text as a graph. The text may end after any whole character; `found` gets the states right behind one
// of the strings.
struct FreeText {
  NodeGraph graph;
  std::vector<int32_t> between_chars;              // states
  std::vector<std::pair<int32_t, int32_t>> found;  // state and string
};
FreeText MakeFreeText(Ir& ir, std::span<const std::string> strings);

// Text of whole characters that has none of the strings in it; with none of them any text. Ordinary tokens
// only. Strings with an added token cannot come in such text anyway.
NodeId AddTextWithout(Ir& ir, std::span<const std::string> excluded);

}  // namespace foredraft
