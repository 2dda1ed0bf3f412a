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
// A literal, split at added tokens: these match by id alone, the parts between them by bytes.
NodeId AddMarkedLiteral(Ir& ir, std::string_view text, const Vocabulary& vocabulary);
// Whether an added token is in the text.
bool HasAddedToken(std::string_view text, const Vocabulary& vocabulary);

// Free text as a graph, which stops where one of some strings ends: `found` has the states right after one.
// Between characters, in the states of `between_chars`, a caller may let the text end.
struct FreeText {
  NodeGraph graph;
  std::vector<int32_t> between_chars;              // states
  std::vector<std::pair<int32_t, int32_t>> found;  // state and string
};
FreeText MakeFreeText(Ir& ir, std::span<const std::string> strings);

// Text of whole characters that contains none of the strings; any text if there are no strings. Ordinary
// tokens only. Strings with an added token cannot come in such text anyway.
NodeId AddTextWithout(Ir& ir, std::span<const std::string> excluded);

}  // namespace foredraft
