#include "tests/scheduler/constrained_script.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "grammar/compile.h"
#include "tests/scheduler/fake_rank.h"

namespace foredraft {
namespace {

// Tokens 0..25 are letters, 26..35 two of them but for 32, which is two line ends; 36 and 37 are added
// tokens, 38 is a line end.
std::shared_ptr<const Vocabulary> ScriptVocabulary() {
  VocabularySource source;
  for (char c = 'a'; c <= 'z'; ++c) source.ordinary.emplace_back(1, c);
  for (const char* pair : {"ab", "bc", "cd", "ef", "gh", "ij", "\n\n", "zz", "ba", "qu"}) {
    source.ordinary.emplace_back(pair);
  }
  for (const char* added : {"<call>", "<also>"}) {
    source.added.emplace_back(added, static_cast<int32_t>(source.ordinary.size()));
    source.ordinary.emplace_back();
  }
  source.ordinary.emplace_back("\n");
  source.ordinary.resize(kScriptEnd + 1);
  source.end_ids = {kScriptEnd};
  auto vocabulary = Vocabulary::Create(std::move(source));
  CHECK(vocabulary.ok()) << vocabulary.status().ToString();
  return *vocabulary;
}

// A trigger is the first token where there is one.
Constraint ScriptConstraint(int index) {
  switch (index) {
    case 0:
      return {.kind = Constraint::kGbnf,
              .source = "root ::= (<call> | <also>)? [a-h]{2,30} (\"ij\" | \"k\" [a-z]+)?"};
    case 1:
      return {.kind = Constraint::kGbnf, .source = "root ::= (<call> | <also>)? (\"abcd\" | \"quba\")"};
    case 2:
      return {.kind = Constraint::kGbnf,
              .source = "root ::= (<call> | <also>)? (\"z\" | \"zz\" | \"a\" root)"};
    default:
      return {.kind = Constraint::kGbnf, .source = "root ::= (<call> | <also>)? [a-z]*"};
  }
}

std::vector<int32_t> Allowed(const TokenMask& mask) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < mask.vocab_size; ++id) {
    if (mask.Allows(id)) ids.push_back(id);
  }
  return ids;
}

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

std::shared_ptr<const Grammar> ScriptGrammar(int index) {
  static const auto* const grammars = [] {
    auto* const made = new std::array<std::shared_ptr<const Grammar>, kScriptGrammarCount>;
    const std::shared_ptr<const Vocabulary> vocabulary = ScriptVocabulary();
    for (int i = 0; i < kScriptGrammarCount; ++i) {
      auto grammar = CompileConstraint(ScriptConstraint(i), vocabulary, GrammarLimits());
      CHECK(grammar.ok()) << grammar.status().ToString();
      (*made)[i] = *grammar;
    }
    return made;
  }();
  return (*grammars)[index];
}

std::vector<int32_t> ConstrainedTokens(const Request& request) {
  const RequestConstraint& constraint = request.constraint;
  const ThinkingIds& thinking = request.thinking;
  const int prompt_len = static_cast<int>(request.prompt_ids.size());
  const bool closed = request.prompt_ids.back() == thinking.end;
  const bool may_think = !constraint.from_first_token && thinking.begin >= 0 && !closed;
  bool thinks = !constraint.from_first_token && request.prompt_phase == Phase::kThinking;
  bool waits = !constraint.trigger_ids.empty();  // for a trigger
  Matcher matcher(constraint.grammar, constraint.end_ids);
  size_t line_ends_left = 0;
  const auto may_end_line = [&](int32_t id) {
    return Contains(constraint.line_end_ids, id) &&
           constraint.grammar->vocabulary().bytes(id).size() <= line_ends_left;
  };
  std::vector<int32_t> tokens;
  while (static_cast<int>(tokens.size()) < request.max_tokens) {
    const int position = prompt_len + static_cast<int>(tokens.size());
    const bool is_free = thinks || waits;
    int32_t token = ScriptedToken(request.id, position);
    if (!is_free) {
      std::vector<int32_t> allowed = Allowed(**matcher.Mask());
      if (tokens.empty() && may_think && !Contains(allowed, thinking.begin))
        allowed.push_back(thinking.begin);
      for (const int32_t id : constraint.line_end_ids) {
        if (may_end_line(id)) allowed.push_back(id);
      }
      token = allowed[Mix(request.id, position) % allowed.size()];
    }
    tokens.push_back(token);
    if (thinks) {
      thinks = token != thinking.end;
      if (!thinks && !waits) line_ends_left = kMostLineEnds;
    } else if (may_end_line(token)) {
      line_ends_left -= constraint.grammar->vocabulary().bytes(token).size();
    } else if (may_think && token == thinking.begin && (waits || tokens.size() == 1)) {
      thinks = true;
    } else if (!waits || Contains(constraint.trigger_ids, token)) {
      waits = false;
      line_ends_left = 0;
      const auto taken = matcher.Advance(token);
      CHECK(taken.ok() && *taken) << "token " << token << " at " << position;
    }
    if (Contains(request.stop_ids, token)) break;
  }
  return tokens;
}

}  // namespace foredraft
