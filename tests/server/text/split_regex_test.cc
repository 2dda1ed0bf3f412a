#include "server/text/split_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Split(const SplitRegex& regex, std::string_view text) {
  RegexScratch scratch;
  std::vector<std::string_view> pieces;
  const absl::Status status = regex.Split(text, scratch, pieces);
  EXPECT_TRUE(status.ok()) << status;
  return {pieces.begin(), pieces.end()};
}

std::vector<std::string> Split(std::string_view pattern, std::string_view text) {
  const auto regex = SplitRegex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  return regex.ok() ? Split(*regex, text) : std::vector<std::string>();
}

TEST(SplitRegex, IsolatesMatchesAndWhatLiesBetween) {
  EXPECT_THAT(Split(R"(\p{N}{1,3})", "ab12345c"), ElementsAre("ab", "123", "45", "c"));
  EXPECT_THAT(Split("x", "xxa"), ElementsAre("x", "x", "a"));
  EXPECT_THAT(Split("x", ""), ElementsAre());
}

TEST(SplitRegex, LooksAheadNoFurtherThanThePiece) {
  EXPECT_THAT(Split(R"(\s+(?!\S)|\s+)", "a   b"), ElementsAre("a", "  ", " ", "b"));
  EXPECT_THAT(Split(R"(\s+(?!\S)|\s+)", "a   "), ElementsAre("a", "   "));
}

// Where plain PCRE2 differs from Oniguruma: U+180E is not white space, and Unicode 15 and 16 are known.
TEST(SplitRegex, ReadsCharactersAsOnigurumaDoes) {
  EXPECT_THAT(Split(R"(\s)", "a\u180eb\u3000c"), ElementsAre("a\u180eb", "\u3000", "c"));
  EXPECT_THAT(Split(R"( ?[\p{S}]+)", "a 🫨🫩"), ElementsAre("a", " 🫨🫩"));
  EXPECT_THAT(Split(R"(\p{L}+)", "1\U00031350\u1c89 2"), ElementsAre("1", "\U00031350\u1c89", " 2"));
  EXPECT_THAT(Split(R"(\P{L}+)", "a\U00031350 "), ElementsAre("a\U00031350", " "));
  EXPECT_THAT(Split("(?i:'s)", "'S'ſ"), ElementsAre("'S", "'ſ"));
  EXPECT_THAT(Split(".+", "a\r\nb\u2028c"), ElementsAre("a\r", "\n", "b\u2028c"));
}

TEST(SplitRegex, KnowsTheClassesOfKimi) {
  EXPECT_THAT(Split(R"([\p{Han}]+)", "a漢字b\U00031350。"),
              ElementsAre("a", "漢字", "b", "\U00031350", "。"));
  EXPECT_THAT(Split(R"([\p{Lu}\p{M}]+)", "aBCd\ua7cb"), ElementsAre("a", "BC", "d", "\ua7cb"));
  EXPECT_THAT(Split(R"([\p{Ll}\p{Lo}&&[^\p{Han}]]+)", "ab漢cdあ1"), ElementsAre("ab", "漢", "cdあ", "1"));
  EXPECT_THAT(Split(R"([a-z&&[aeiou]]+x?)", "beaxt"), ElementsAre("b", "eax", "t"));
}

// Characters whose script is Common and whose script extensions have Han.
TEST(SplitRegex, TakesScriptsWithoutTheirExtensions) {
  EXPECT_THAT(Split(R"(\p{Han}+)", "漢、「漢"), ElementsAre("漢", "、「", "漢"));
}

TEST(SplitRegex, TakesALiteralAsItIs) {
  const auto regex = SplitRegex::CompileLiteral("a.b");
  ASSERT_TRUE(regex.ok()) << regex.status();
  EXPECT_THAT(Split(*regex, "axba.bc"), ElementsAre("axb", "a.b", "c"));
}

struct RefusedRegex {
  const char* name;
  const char* pattern;
  const char* message;
};

TEST(SplitRegex, RefusesWhatTheDialectsReadDifferently) {
  const RefusedRegex cases[] = {
      {"Intersection", "[a-z&&x]", "an intersection of sets other than [...&&[...]] at byte 4"},
      {"IntersectionGoesOn", "[a-z&&[x]y]", "an intersection of sets"},
      {"IntersectionOfThree", "[a-z&&[x]&&[y]]", "an intersection of sets"},
      {"NegatedIntersection", "[^a-z&&[x]]", "an intersection of sets"},
      {"OpenIntersection", "[a-z&&[x", "an intersection of sets"},
      {"NestedSet", "[a[b]]", "a set inside a class at byte 2"},
      {"Anchor", "^a", "an anchor at byte 0"},
      {"HexDigit", R"(\h)", "the escape \\h at byte 0"},
      {"Word", R"(\w+)", "the escape \\w"},
      {"Script", R"(\p{Greek})", "a Unicode class other than"},
      {"Subcategory", R"(\p{Nd})", "a Unicode class other than"},
      {"NoBraces", R"(\pL)", "a Unicode class other than"},
      {"OpenBrace", R"(\p{L)", "a Unicode class other than"},
      {"NegatedInClass", R"([\P{L}])", "\\P inside a class"},
      {"OpenCount", "a{,2}", "this use of {"},
      {"PossessiveCount", "a{1,2}+", "+ after a count"},
      {"Verb", "(*UTF)a", "this kind of group"},
      {"Option", "(?m)a", "this kind of group"},
      {"BracketFirst", "[]a]", "] as the first of a class"},
      {"OpenClass", "[ab", "a class without its ]"},
      {"LoneBackslash", "a\\", "a lone backslash"},
      {"EmptyMatch", "a*", "matches the empty text"},
      {"OpenGroup", "(a", "missing closing parenthesis"},
  };
  for (const RefusedRegex& test_case : cases) {
    const auto regex = SplitRegex::Compile(test_case.pattern);
    ASSERT_FALSE(regex.ok()) << test_case.name;
    EXPECT_THAT(std::string(regex.status().message()), HasSubstr(test_case.message)) << test_case.name;
  }
}

TEST(SplitRegex, TakesAMatchThatAThreadsOwnStackIsTooSmallFor) {
  const std::string text = std::string(20'000, 'a') + "c";
  EXPECT_THAT(Split("(?:a|b)+c", text + " " + text), ElementsAre(text, " ", text));
}

TEST(SplitRegex, EndsARunawayMatchWithAnError) {
  const auto regex = SplitRegex::Compile(R"((?:a+)+\s)");
  ASSERT_TRUE(regex.ok()) << regex.status();
  RegexScratch scratch;
  std::vector<std::string_view> pieces;
  const std::string text(40, 'a');
  const absl::Status status = regex->Split(text, scratch, pieces);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("limit"));
}

}  // namespace
}  // namespace foredraft
