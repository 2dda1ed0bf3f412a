// Masks of random grammars against the slow matcher, and of strings against tokens tried one by one.

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "grammar/compile.h"
#include "grammar/grammar.h"
#include "grammar/ir.h"
#include "tests/grammar/slow_matcher.h"
#include "tests/grammar/small_vocabulary.h"

namespace foredraft {
namespace {

int Rounds(int quick) { return std::getenv("FOREDRAFT_FULL") != nullptr ? 20 * quick : quick; }

// Random rules over the letters a to d and two characters of two bytes. Every rule has a word; calls to a
// rule that is not later come after a letter.
class RandomGrammar {
 public:
  RandomGrammar(Ir& ir, uint32_t seed) : ir_(ir), random_(seed) {
    const int rules = 1 + static_cast<int>(random_() % 4);
    for (int r = 0; r < rules; ++r) ir_.AddRule("rule " + std::to_string(r));
    for (int r = 0; r < rules; ++r) {
      const NodeId plain = Node(r, 3);
      const NodeId letter = Letter();
      const NodeId again = random_() % 2 == 0 ? ir_.Call(static_cast<RuleId>(random_() % rules))
                                              : ir_.NestedCall(static_cast<RuleId>(random_() % rules));
      const NodeId recursive = ir_.Sequence({letter, again, random_() % 2 == 0 ? Node(r, 1) : ir_.Empty()});
      ir_.SetRule(r, random_() % 2 == 0 ? plain : ir_.Alternative({plain, recursive}));
    }
    ir_.set_root(0);
  }

 private:
  NodeId Letter() {
    ByteClass bytes = ByteClass::Of(static_cast<uint8_t>('a' + random_() % 4));
    if (random_() % 3 == 0) bytes.Add('a' + random_() % 4);
    return ir_.Bytes(bytes);
  }
  NodeId Graph(int rule, int depth) {
    NodeGraph graph;
    const int states = 2 + static_cast<int>(random_() % 2);
    for (int s = 0; s < states; ++s) graph.AddState();
    for (int s = 0; s + 1 < states; ++s) graph.AddEdge(s, Node(rule, depth - 1), s + 1);
    graph.AddEdge(0, random_() % 2 == 0 ? NodeGraph::kEmptyLabel : Letter(), states - 1);
    graph.AddEdge(states - 1, Letter(), 0);
    graph.states.back().accepts = true;
    return ir_.Graph(std::move(graph));
  }
  NodeId Node(int rule, int depth) {
    const int kind = static_cast<int>(random_() % (depth > 0 ? 8 : 2));
    if (kind == 0) return Letter();
    if (kind == 1)
      return random_() % 4 == 0 ? ir_.Empty() : ir_.Literal(random_() % 2 == 0 ? "ab" : "\xC3\xA9");
    if (kind <= 3) return ir_.Sequence({Node(rule, depth - 1), Node(rule, depth - 1)});
    if (kind == 4) return ir_.Alternative({Node(rule, depth - 1), Node(rule, depth - 1)});
    if (kind == 5) return Graph(rule, depth);
    if (kind == 6 && rule + 1 < ir_.rule_count()) {
      return ir_.Call(static_cast<RuleId>(rule + 1 + random_() % (ir_.rule_count() - rule - 1)));
    }
    const int min = static_cast<int>(random_() % 4);
    const int max = random_() % 3 == 0 ? -1 : std::max(1, min + static_cast<int>(random_() % 40));
    return ir_.Repeat(Node(rule, depth - 1), min, max);
  }

  Ir& ir_;
  std::mt19937 random_;
};

void CheckMask(Matcher& matcher, SlowMatcher& slow, const Vocabulary& vocabulary, const std::string& text) {
  const auto mask = matcher.Mask();
  ASSERT_TRUE(mask.ok()) << mask.status();
  EXPECT_EQ(matcher.IsAccepting(), slow.IsWord(text));
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const bool is_end = id == vocabulary.end_ids()[0];
    const bool expected =
        is_end ? slow.IsWord(text)
               : vocabulary.IsOrdinary(id) && slow.IsPrefix(text + std::string(vocabulary.bytes(id)));
    ASSERT_EQ((*mask)->Allows(id), expected)
        << "token \"" << vocabulary.bytes(id) << "\" after \"" << text << "\"";
  }
}

TEST(Masks, OfRandomGrammarsAreTheSlowMatchers) {
  std::mt19937 random(1);
  const auto vocabulary =
      SmallVocabulary(RandomWords({"a", "b", "c", "d", "\xC3\xA9", "\xC3"}, 60, 6, random));
  int compared = 0;
  for (int seed = 0; seed < Rounds(400); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    GrammarLimits limits;
    limits.max_depth = 200;       // deeper than any text here
    limits.table_bytes = 20'000;  // so that tables are dropped all the time
    Ir ir(limits);
    RandomGrammar grammar_of(ir, seed);
    const auto grammar = Grammar::Create(ir, vocabulary);
    if (!grammar.ok()) {  // too ambiguous for the default bounds
      ASSERT_TRUE(absl::StrContains(grammar.status().message(), "more than")) << grammar.status();
      continue;
    }
    SlowMatcher slow(ir);
    Matcher matcher(*grammar);
    std::string text;
    for (int step = 0; step < 6; ++step, ++compared) {
      const auto mask = matcher.Mask();
      if (absl::IsResourceExhausted(mask.status())) break;  // as ambiguous, but only after this text
      CheckMask(matcher, slow, *vocabulary, text);
      if (HasFatalFailure()) return;
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocabulary->size(); ++id) {
        if ((*mask)->Allows(id)) allowed.push_back(id);
      }
      const int32_t token = allowed[random() % allowed.size()];
      const auto advanced = matcher.Advance(token);
      if (absl::IsResourceExhausted(advanced.status())) break;
      ASSERT_TRUE(advanced.ok()) << advanced.status();
      ASSERT_TRUE(*advanced);
      if (matcher.has_ended()) break;
      text += vocabulary->bytes(token);
    }
  }
  EXPECT_GT(compared, Rounds(400));
}

// Schemas whose strings take slices of the vocabulary: whole, by length, with exceptions, or not at all.
const char* const kSliceSchemas[] = {
    "{}",
    R"({"type":"string"})",
    R"({"type":"string","maxLength":7})",
    R"({"type":"string","minLength":5,"maxLength":1000})",
    R"({"type":"object","properties":{"name":{"type":"string"},"nab":{"type":"string","maxLength":40}}})",
    R"({"type":"string","pattern":"^[a-n ]*$"})",
    R"({"type":"string","pattern":"na"})",
    R"({"type":"string","pattern":"nab|ma|^n"})",
    R"({"type":"string","pattern":"^(?!.*nab)[^b]*"})",
    R"({"type":"string","pattern":"^(?=.*na)[^m]*$"})",
    R"({"type":"string","not":{"enum":["na","nab"]}})",
    R"({"type":"array","items":{"type":"string","maxLength":3},"maxItems":5})",
    R"({"type":"object","patternProperties":{"^n":{"type":"integer"}}})",
};

TEST(Masks, OfStringsAreTheTokensThatAdvance) {
  std::mt19937 random(3);
  std::vector<std::string> words = RandomWords({"n", "a", "b", "m", " ", "\"", "\\", ":", ",", "<", "\n", "{",
                                                "}", "[", "1", "\xC3\xA9", "\xE4\xB8\xAD", "\xE4"},
                                               500, 9, random);
  for (int length = 2; length <= 60; ++length) words.emplace_back(static_cast<size_t>(length), 'n');
  const auto vocabulary = SmallVocabulary(words);
  for (int seed = 0; seed < Rounds(8); ++seed) {
    for (const char* schema : kSliceSchemas) {
      SCOPED_TRACE(std::string(schema) + " seed " + std::to_string(seed));
      GrammarLimits limits;
      if (seed % 2 == 1) limits.table_bytes = 50'000;
      const auto grammar =
          CompileConstraint({.kind = Constraint::kJsonSchema, .source = schema}, vocabulary, limits);
      ASSERT_TRUE(grammar.ok()) << grammar.status();
      Matcher matcher(*grammar);
      for (int step = 0; step < 25 && !matcher.has_ended(); ++step) {
        const auto mask = matcher.Mask();
        ASSERT_TRUE(mask.ok()) << mask.status();
        std::vector<int32_t> allowed;
        int count = 0;
        for (int32_t id = 0; id < vocabulary->size(); ++id) {
          Matcher after = matcher;
          ASSERT_EQ(*after.Advance(id), (*mask)->Allows(id))
              << "token \"" << vocabulary->bytes(id) << "\" at " << step;
          if ((*mask)->Allows(id)) allowed.push_back(id);
          count += (*mask)->Allows(id);
        }
        ASSERT_EQ(count, (*mask)->count);
        ASSERT_TRUE(*matcher.Advance(allowed[random() % allowed.size()]));
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
