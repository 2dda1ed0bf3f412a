#pragma once

// Structural tags, XGrammar's JSON for text with structured parts, such as tool calls between markers.
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
// begins with the first tag of the output and leaves out the text before it.
absl::StatusOr<StructuralTag> AddStructuralTag(Ir& ir, std::string_view source, const Vocabulary& vocabulary,
                                               const JsonStyle& style, bool free_until_trigger);

}  // namespace foredraft
