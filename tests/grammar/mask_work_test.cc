// What grammars cost: the memory that a cache counts, and the work of masks, counted as if nothing were
// known.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grammar/compile.h"
#include "tests/grammar/small_vocabulary.h"

namespace foredraft {
namespace {

std::shared_ptr<const Vocabulary> Bytes() { return SmallVocabulary({}); }

Constraint Expression(std::string source) {
  return {.kind = Constraint::kRegex, .source = std::move(source)};
}

TEST(GrammarCache, DropsTheLeastRecentlyUsed) {
  GrammarCache cache(Bytes(), {}, 1'000'000);
  const auto first = cache.Compile(Expression("a{1,3}"));
  EXPECT_EQ(*cache.Compile(Expression("a{1,3}")), *first);
  EXPECT_EQ(cache.counts().hits, 1);
  for (int i = 0; i < 300; ++i)
    ASSERT_TRUE(cache.Compile(Expression("[b-d]{1," + std::to_string(i + 1) + "}")).ok());
  EXPECT_LT(cache.counts().grammars, 300);
  EXPECT_GT(cache.counts().grammars, 20);
  EXPECT_LE(cache.counts().bytes, 1'000'000 + (*first)->byte_count()) << "the first one is still in use";
  EXPECT_NE(*cache.Compile(Expression("a{1,3}")), *first);
}

// The total is what is there, whatever came and went, and grows with the states of a grammar in use.
TEST(GrammarCache, CountsWhatItHoldsAsItGrows) {
  GrammarCache cache(Bytes(), {}, 100'000'000);
  EXPECT_EQ(cache.counts().bytes, 0);
  const auto grammar = *cache.Compile(Expression("(.*a.{9}|.*b.{9})"));
  const int64_t before = cache.counts().bytes;
  EXPECT_EQ(before, grammar->byte_count());
  Matcher matcher(grammar);
  for (const char c : std::string("abbabaabbbabaababbab")) {
    ASSERT_TRUE(*matcher.Advance(static_cast<uint8_t>(c)));
    ASSERT_TRUE(matcher.Mask().ok());
  }
  EXPECT_GT(cache.counts().bytes, before + 20'000);
  EXPECT_EQ(cache.counts().bytes, grammar->byte_count());
}

TEST(GrammarCache, CountsAGrammarInUseUntilItsLastOutputEnds) {
  auto cache = std::make_unique<GrammarCache>(Bytes(), GrammarLimits(), 1);
  const auto kept = *cache->Compile(Expression("a{1,3}"));
  const int64_t one = cache->counts().bytes;
  ASSERT_TRUE(cache->Compile(Expression("b{1,3}")).ok());
  EXPECT_EQ(cache->counts().grammars, 1) << "the newest stays, whatever the limit";
  EXPECT_GT(cache->counts().bytes, one) << "the dropped one lives on here";
  EXPECT_LT(cache->counts().bytes, 3 * one);
  cache = nullptr;
  EXPECT_EQ(kept->byte_count(), one) << "a grammar outlives its cache";
}

// ---- counted work ----

std::string ManyAlternatives(int count, const char* each) {
  std::string rule = "root ::= c c c c\nc ::= ";
  for (int i = 0; i < count; ++i) rule += std::string(i == 0 ? "" : "|") + each;
  return rule;
}

TEST(MaskWork, EqualEdgesAreOne) {
  const auto many = CompileConstraint(
      {.kind = Constraint::kGbnf, .source = ManyAlternatives(50'000, "\"a\"")}, Bytes(), GrammarLimits());
  ASSERT_TRUE(many.ok()) << many.status();
  const auto one = CompileConstraint({.kind = Constraint::kGbnf, .source = ManyAlternatives(1, "\"a\"")},
                                     Bytes(), GrammarLimits());
  EXPECT_EQ((*many)->automaton().edges.size(), (*one)->automaton().edges.size());
}

TEST(MaskWork, EdgesAreStepsOfCompiling) {
  GrammarLimits limits;
  limits.max_compile_steps = 100'000;
  const auto refused = CompileConstraint(
      {.kind = Constraint::kGbnf, .source = ManyAlternatives(60'000, "\"a\"")}, Bytes(), limits);
  ASSERT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_NE(refused.status().message().find("constraints.max_compile_steps"), std::string::npos);
}

// Every letter begins eight ends that are 30 letters long: the configurations grow with the output.
std::string Ambiguous() {
  std::string expression = "(";
  for (char last = 's'; last <= 'z'; ++last) {
    if (last > 's') expression += '|';
    expression += ".*[a-k][a-";
    expression += last;
    expression += "]{30}";
  }
  return expression + ")";
}

// How far an output of ever more configurations gets, and with which error it ends.
std::pair<int, absl::Status> ReadAmbiguous(const std::shared_ptr<const Grammar>& grammar, int64_t allowance) {
  Matcher matcher(grammar);
  for (int i = 0; i < 900; ++i) {
    while (true) {  // attempts, each of which goes on where the one before gave up
      MaskWork work = {.allowance = allowance};
      const auto mask = matcher.Mask(&work);
      if (absl::IsAborted(mask.status())) {
        allowance = 2 * allowance;  // a single transition may be above it
        continue;
      }
      if (!mask.ok()) return {i, mask.status()};
      break;
    }
    if (const auto taken = matcher.Advance('a' + i % 2); !taken.ok()) return {i, taken.status()};
  }
  return {900, absl::OkStatus()};
}

TEST(MaskWork, ALimitDoesNotDependOnWhatIsKnown) {
  GrammarLimits limits;
  limits.max_mask_steps = 3'000;
  const auto compile = [&] { return *CompileConstraint(Expression(Ambiguous()), Bytes(), limits); };
  const auto grammar = compile();
  const auto first = ReadAmbiguous(grammar, MaskWork::kNoEnd);
  EXPECT_TRUE(absl::IsResourceExhausted(first.second)) << first.second;
  EXPECT_GT(first.first, 2);
  EXPECT_EQ(ReadAmbiguous(grammar, MaskWork::kNoEnd), first) << "again, with all transitions known";
  EXPECT_EQ(ReadAmbiguous(compile(), 300), first) << "in attempts";
}

TEST(MaskWork, StepsAreChargedOnceAndStayBelowTheLimitAndOneTransition) {
  GrammarLimits limits;
  limits.max_mask_steps = 20'000;
  const auto grammar = *CompileConstraint(Expression(Ambiguous()), Bytes(), limits);
  Matcher matcher(grammar);
  for (int i = 0; i < 900; ++i) {
    MaskWork work, again;
    const auto mask = matcher.Mask(&work);
    EXPECT_LE(work.steps, 2 * limits.max_mask_steps);
    if (!mask.ok()) break;
    ASSERT_TRUE(matcher.Mask(&again).ok());
    EXPECT_LT(again.steps, 2'000);
    if (!matcher.Advance('a' + i % 2, &work).ok()) break;
  }
}

// 130 names with 26 first letters.
std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (char c = 'a'; c <= 'z'; ++c) {
    for (const char* end : {"lp", "eta", "amma", "elta", "psi"}) names.push_back(c + std::string(end));
  }
  return names;
}

// The most steps of a mask along `text`.
int64_t MostSteps(const std::string& schema, const std::string& text) {
  const auto grammar =
      CompileConstraint({.kind = Constraint::kJsonSchema, .source = schema}, Bytes(), GrammarLimits());
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  Matcher matcher(*grammar);
  int64_t most = 0;
  for (const char c : text) {
    MaskWork work;
    EXPECT_TRUE(matcher.Mask(&work).ok());
    most = std::max(most, work.steps);
    EXPECT_TRUE(*matcher.Advance(static_cast<uint8_t>(c))) << c;
  }
  return most;
}

TEST(MaskWork, ObjectsOfManyPropertiesAreBorne) {
  std::string properties;
  for (const std::string& name : Names()) {
    properties += (properties.empty() ? "\"" : ",\"") + name + R"(":{"type":"integer"})";
  }
  const std::string schema = R"({"type":"object","properties":{)" + properties + "}}";
  EXPECT_LT(MostSteps(schema, R"({"alp": 1, "zeta": 2, "other": 3)"), 10'000);
}

TEST(MaskWork, SearchesForOneOfManyWordsAreBorne) {
  std::string words;
  for (const std::string& name : Names()) words += (words.empty() ? "" : "|") + name;
  EXPECT_LT(MostSteps(R"({"type":"string","pattern":")" + words + R"("})", R"("one alpalphabet")"), 1'000);
  EXPECT_LT(MostSteps(R"({"type":"string","pattern":"[a-z0-9]{162}"})", "\"" + std::string(200, 'a') + "\""),
            1'000);
}

TEST(MaskWork, AnAllowanceEndsAnAttempt) {
  const auto grammar = *CompileConstraint(Expression("(ab|cd){40}"), Bytes(), GrammarLimits());
  Matcher matcher(grammar);
  ASSERT_TRUE(*matcher.Advance('a'));
  MaskWork work = {.allowance = 0};
  EXPECT_TRUE(absl::IsAborted(matcher.Advance('b', &work).status()));
  EXPECT_EQ(matcher.token_count(), 1);
  EXPECT_TRUE(absl::IsAborted(matcher.Mask(&work).status()));
  EXPECT_TRUE(absl::IsAborted(matcher.RowsAlong({}, {}, &work).status()));
  EXPECT_TRUE((*matcher.Mask())->Allows('b'));
  EXPECT_TRUE(*matcher.Advance('b'));
}

}  // namespace
}  // namespace foredraft
