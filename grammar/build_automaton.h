#pragma once

// The automaton of a grammar from its rules, with the checks that the rules have to pass.

#include <cstdint>

#include "absl/status/statusor.h"
#include "grammar/automaton.h"
#include "grammar/ir.h"

namespace foredraft {

// INVALID_ARGUMENT: a limit, a rule that calls itself before it consumes anything, or no word at all.
// `longest_token` in bytes.
absl::StatusOr<Automaton> BuildAutomaton(Ir& ir, int32_t longest_token);

}  // namespace foredraft
