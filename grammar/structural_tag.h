#pragma once

// Structural tags, XGrammar's JSON for text with structured parts: tool calls between markers.
// docs/structured-output.md lists the formats.

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "grammar/ir.h"
#include "grammar/json_schema.h"
#include "grammar/vocabulary.h"

namespace foredraft {

// INVALID_ARGUMENT names the JSON pointer.
absl::StatusOr<NodeId> AddStructuralTag(Ir& ir, std::string_view source, const Vocabulary& vocabulary,
                                        const JsonStyle& style);

// A literal cut at added tokens first: those parts match by id alone, the others by bytes.
NodeId AddMarkedLiteral(Ir& ir, std::string_view text, const Vocabulary& vocabulary);
// Whether an added token is in the text.
bool HasAddedToken(std::string_view text, const Vocabulary& vocabulary);

// Text of whole characters that has none of the strings in it; with none of them any text. Ordinary tokens
// only. Strings with an added token cannot come in such text anyway.
NodeId AddTextWithout(Ir& ir, std::span<const std::string> excluded);

}  // namespace foredraft
