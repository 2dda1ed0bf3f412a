#pragma once

// Grammars in GBNF, llama.cpp's notation: rules "name ::= ...", of which "root" is the start.

#include <string_view>

#include "absl/status/statusor.h"
#include "grammar/ir.h"
#include "grammar/vocabulary.h"

namespace foredraft {

// The language of the rule "root". Single tokens (<[id]>, <token>) are looked up in the vocabulary.
// INVALID_ARGUMENT names the line.
absl::StatusOr<NodeId> AddGbnf(Ir& ir, std::string_view grammar, const Vocabulary& vocabulary);

}  // namespace foredraft
