#pragma once

// Constrained requests of the scheduler's random runs: grammars over the fake ranks' 40 tokens, and the
// tokens that such a request gets, found by walking along its gate and grammar one token at a time.

#include <cstdint>
#include <memory>
#include <vector>

#include "grammar/grammar.h"
#include "scheduler/request.h"

namespace foredraft {

inline constexpr int kScriptGrammarCount = 4;
inline constexpr int32_t kScriptTrigger = 36;   // an added token, as is the next one
inline constexpr int32_t kScriptLineEnds = 32;  // "\n\n"
inline constexpr int32_t kScriptLineEnd = 38;   // "\n"; no grammar has it
inline constexpr int32_t kScriptEnd = 39;       // of the vocabulary; every grammar ends with it

// 0 <= index < kScriptGrammarCount. Compiled once.
std::shared_ptr<const Grammar> ScriptGrammar(int index);

// Up to a stop id or max_tokens. Free tokens are ScriptedToken's.
std::vector<int32_t> ConstrainedTokens(const Request& request);

}  // namespace foredraft
