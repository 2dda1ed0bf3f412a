#pragma once

// Structural tags, XGrammar's JSON for text with structured parts: tool calls between markers.
// docs/structured-output.md lists the formats.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "grammar/ir.h"
#include "grammar/json_schema.h"
#include "grammar/vocabulary.h"

namespace foredraft {

struct StructuralTag {
  NodeId node = 0;
  // Grammar::trigger_ids.
  std::vector<int32_t> trigger_ids;
};

// INVALID_ARGUMENT names the JSON pointer. With `free_until_trigger`, and triggers that allow it, the node
// begins with the first tag of the output, and what may stand before that is left out.
absl::StatusOr<StructuralTag> AddStructuralTag(Ir& ir, std::string_view source, const Vocabulary& vocabulary,
                                               const JsonStyle& style, bool free_until_trigger);

// A literal cut at added tokens first: those parts match by id alone, the others by bytes.
NodeId AddMarkedLiteral(Ir& ir, std::string_view text, const Vocabulary& vocabulary);
// Whether an added token is in the text.
bool HasAddedToken(std::string_view text, const Vocabulary& vocabulary);

// Text of whole characters that has none of the strings in it; with none of them any text. Ordinary tokens
// only. Strings with an added token cannot come in such text anyway.
NodeId AddTextWithout(Ir& ir, std::span<const std::string> excluded);

}  // namespace foredraft
