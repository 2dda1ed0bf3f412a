#pragma once

// Requests with grammars for engine tests, behind every kind of gate.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grammar/compile.h"
#include "scheduler/request.h"

namespace foredraft {

// The vocabulary of abacus.
std::shared_ptr<const Vocabulary> AbacusVocabulary();
// A vocabulary of `size` ids for checkpoints of random weights: 1 is the end token, then letters, digits and
// pairs of letters.
std::shared_ptr<const Vocabulary> LetterVocabulary(int size);

// CHECKs that the constraint compiles.
std::shared_ptr<const Grammar> CompileOrDie(const Constraint& constraint,
                                            const std::shared_ptr<const Vocabulary>& vocabulary);

// What the output of a test request must be.
struct GateShape {
  Constraint constraint;  // a trigger comes before it
  int thought_end = -1;   // the thought ends with free_tokens[thought_end]; -1: no thought
  bool opens = false;     // with free_tokens[0], instead of in the prompt
  int trigger = -1;       // free_tokens[trigger] is the trigger; -1: none
};

// `free_tokens`: what the request gives without a constraint, so the gates are where they say. Where it is
// too short the request stays as it is.
void Constrain(const GateShape& shape, const std::vector<int32_t>& free_tokens,
               const std::shared_ptr<const Vocabulary>& vocabulary, Request& request);

// Every eighth request stays free; the others have a JSON Schema, an expression, or GBNF, and thoughts and
// triggers before them.
void ConstrainAll(const std::vector<std::vector<int32_t>>& free_tokens,
                  const std::vector<Constraint>& constraints,
                  const std::shared_ptr<const Vocabulary>& vocabulary, std::vector<Request>& requests);

// Empty if the tokens are what the request may give, one by one; otherwise what is wrong.
std::string FaultOf(const Request& request, const std::vector<int32_t>& tokens);

}  // namespace foredraft
