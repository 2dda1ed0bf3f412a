#include "tests/engine/constrained_requests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/text/tokenizer.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

std::shared_ptr<const Vocabulary> Make(VocabularySource source) {
  auto vocabulary = Vocabulary::Create(std::move(source));
  CHECK(vocabulary.ok()) << vocabulary.status().ToString();
  return *vocabulary;
}

// `token`, then what the constraint says.
Constraint After(int32_t token, Constraint constraint) {
  CHECK(constraint.kind == Constraint::kGbnf) << "a trigger needs a grammar that begins with it";
  const std::string root = "root ::= ";
  CHECK(constraint.source.starts_with(root));
  constraint.source =
      absl::StrCat(root, "<[", token, "]> body\nbody ::= ", constraint.source.substr(root.size()));
  return constraint;
}

// Where the token of free_tokens[index] comes first.
int32_t FirstIndex(const std::vector<int32_t>& free_tokens, int index) {
  const auto found = std::find(free_tokens.begin(), free_tokens.end(), free_tokens[index]);
  return static_cast<int32_t>(found - free_tokens.begin());
}

}  // namespace

std::shared_ptr<const Vocabulary> AbacusVocabulary() {
  static const auto* const vocabulary = [] {
    auto tokenizer = Tokenizer::Load(absl::StrCat(kAbacusDir, "/tokenizer.json"));
    CHECK(tokenizer.ok()) << tokenizer.status().ToString();
    VocabularySource source;
    for (int32_t id = 0; id < (*tokenizer)->vocab_size(); ++id) {
      const std::string bytes((*tokenizer)->TokenBytes(id));
      const bool is_added = (*tokenizer)->AddedTokenId(bytes) == id;
      source.ordinary.push_back(is_added ? "" : bytes);
      if (is_added) source.added.emplace_back(bytes, id);
    }
    source.end_ids = {(*tokenizer)->eos_id()};
    return new std::shared_ptr<const Vocabulary>(Make(std::move(source)));
  }();
  return *vocabulary;
}

std::shared_ptr<const Vocabulary> LetterVocabulary(int size) {
  VocabularySource source;
  source.ordinary.resize(2);
  for (char c = 'a'; c <= 'z'; ++c) source.ordinary.emplace_back(1, c);
  for (char c = '0'; c <= '9'; ++c) source.ordinary.emplace_back(1, c);
  for (char c = 'a'; static_cast<int>(source.ordinary.size()) < size; ++c) {
    source.ordinary.push_back({c, static_cast<char>('a' + (c * 7) % 26)});
  }
  source.ordinary.resize(size);
  source.end_ids = {1};
  return Make(std::move(source));
}

std::shared_ptr<const Grammar> CompileOrDie(const Constraint& constraint,
                                            const std::shared_ptr<const Vocabulary>& vocabulary) {
  auto grammar = CompileConstraint(constraint, vocabulary, GrammarLimits());
  CHECK(grammar.ok()) << grammar.status().ToString();
  return *grammar;
}

void Constrain(const GateShape& shape, const std::vector<int32_t>& free_tokens,
               const std::shared_ptr<const Vocabulary>& vocabulary, Request& request) {
  const int last = std::max(shape.thought_end, shape.trigger);
  if (last >= static_cast<int>(free_tokens.size())) return;
  request.stop_ids = vocabulary->end_ids();
  request.sampling.min_tokens = 0;  // a complete output must be able to end
  Constraint constraint = shape.constraint;
  if (shape.trigger >= 0) {
    request.constraint.trigger_ids = {free_tokens[shape.trigger]};
    constraint = After(free_tokens[shape.trigger], constraint);
  }
  if (shape.thought_end >= 0) {
    request.thinking = {.begin = shape.opens ? free_tokens[0] : -1, .end = free_tokens[shape.thought_end]};
    request.prompt_phase = shape.opens ? Phase::kAnswer : Phase::kThinking;
    for (const char* text : {"\n", "\n\n"}) {
      const auto id = vocabulary->Find(text);
      if (shape.trigger < 0 && id) request.constraint.line_end_ids.push_back(*id);
    }
  }
  request.constraint.grammar = CompileOrDie(constraint, vocabulary);
  request.constraint.turn_end_count = static_cast<int32_t>(request.stop_ids.size());
}

void ConstrainAll(const std::vector<std::vector<int32_t>>& free_tokens,
                  const std::vector<Constraint>& constraints,
                  const std::shared_ptr<const Vocabulary>& vocabulary, std::vector<Request>& requests) {
  const int count = static_cast<int>(constraints.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<int32_t>& own = free_tokens[i];
    const int kind = static_cast<int>(i + i / 8) % 8;
    // The last constraint is GBNF, which may follow a trigger.
    GateShape shape{.constraint = constraints[i % count]};
    const int early = static_cast<int>(i / 8 + i % 3);
    if (kind == 0) continue;
    if (kind == 4) shape.thought_end = early + 2;
    if (kind >= 5 && kind < 7) {
      shape.constraint = constraints.back();
      shape.trigger = early + 5;
    }
    if (kind == 6) shape.thought_end = early + 1;
    if (kind == 7) {
      shape.thought_end = early + 1;
      shape.opens = true;
    }
    const bool fits = std::max(shape.thought_end, shape.trigger) < static_cast<int>(own.size());
    // The trigger must not come before the thought ends, nor the end with the first token that opens it.
    if (fits && kind == 6 && FirstIndex(own, shape.trigger) <= FirstIndex(own, shape.thought_end)) continue;
    if (fits && kind == 7 && FirstIndex(own, shape.thought_end) == 0) continue;
    if (!fits) shape = {.constraint = constraints[i % count]};
    if (i % 5 != 4) requests[i].max_tokens = std::max(requests[i].max_tokens, 30);
    Constrain(shape, own, vocabulary, requests[i]);
  }
}

std::string FaultOf(const Request& request, const std::vector<int32_t>& tokens) {
  const RequestConstraint& constraint = request.constraint;
  if (constraint.grammar == nullptr) return "";
  Matcher matcher(constraint.grammar, constraint.end_ids);
  bool thinks = request.prompt_phase == Phase::kThinking;
  bool waits = !constraint.trigger_ids.empty();
  size_t line_ends_left = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    if (thinks) {
      thinks = token != request.thinking.end;
      if (!thinks) line_ends_left = constraint.line_end_ids.empty() ? 0 : kMostLineEnds;
    } else if (const size_t length = constraint.grammar->vocabulary().bytes(token).size();
               std::count(constraint.line_end_ids.begin(), constraint.line_end_ids.end(), token) > 0 &&
               length <= line_ends_left) {
      line_ends_left -= length;
    } else if (i == 0 && token == request.thinking.begin) {
      thinks = true;
    } else if (!waits || token == constraint.trigger_ids[0]) {
      waits = false;
      line_ends_left = 0;
      const auto taken = matcher.Advance(token);
      if (!taken.ok() || !*taken) return absl::StrCat("token ", i, ", ", token, ", is not allowed");
    }
  }
  const bool stopped = !tokens.empty() && tokens.back() == request.stop_ids[0];
  if (stopped && thinks && constraint.trigger_ids.empty()) return "it stopped in its thought";
  return stopped && !thinks && !waits && !matcher.has_ended() ? "it stopped before the end" : "";
}

}  // namespace foredraft
