#pragma once

// Builds the automaton of a grammar from its rules, and checks the rules.

#include <cstdint>

#include "absl/status/statusor.h"
#include "grammar/automaton.h"
#include "grammar/ir.h"

namespace foredraft {

// INVALID_ARGUMENT: a limit is exceeded, a rule calls itself before it consumes anything, or the grammar has
// no word. `longest_token` is in bytes.
absl::StatusOr<Automaton> BuildAutomaton(Ir& ir, int32_t longest_token);

}  // namespace foredraft
