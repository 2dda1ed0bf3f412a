// Strings of a JSON Schema: patterns and formats with lengths.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/grammar/schema_texts.h"

namespace foredraft {
namespace {

// Where a pattern is behind its beginning, a counted repeat takes the place of a state per length.
TEST(JsonSchema, KeepsTheLengthOfAPattern) {
  const auto text = [](const std::string& begin, const std::string& each, int count) {
    std::string all = "\"" + begin;
    for (int i = 0; i < count; ++i) all += each;
    return all + "\"";
  };
  const auto url =
      *CompileSchema(R"({"type":"string","pattern":"^https?://","minLength":50,"maxLength":2048})");
  for (const std::string each : {"a", "\xC3\xA9", "\xF0\x9F\x99\x82", "\\n"}) {
    EXPECT_EQ(Try(url, text("https://", each, 2040)), "accepted");
    EXPECT_EQ(Try(url, text("http://", each, 43)), "accepted");
    EXPECT_NE(Try(url, text("https://", each, 2041)), "accepted");
    EXPECT_NE(Try(url, text("http://", each, 42)), "accepted");
    EXPECT_NE(Try(url, text("httpx://", each, 100)), "accepted");
  }
  const auto word = *CompileSchema(R"({"type":"string","pattern":"^[a-z]\\S*$","maxLength":100})");
  EXPECT_EQ(Try(word, text("a", "!", 99)), "accepted");
  EXPECT_EQ(Try(word, text("a", "!", 0)), "accepted");
  EXPECT_NE(Try(word, text("a", "!", 100)), "accepted");
  EXPECT_NE(Try(word, text("a", " ", 5)), "accepted");
  EXPECT_NE(Try(word, text("", "!", 5)), "accepted");
  // Words, in which no state is led back to by every character.
  const auto words = *CompileSchema(R"({"type":"string","pattern":"^(?:[a-z]+-)*[a-z]+$","maxLength":100})");
  EXPECT_EQ(Try(words, text("a", "-b", 49)), "accepted");
  EXPECT_NE(Try(words, text("a", "-b", 50)), "accepted");
  EXPECT_NE(Try(words, text("a", "--b", 5)), "accepted");
}

// What alternatives begin with is there once.
TEST(JsonSchema, TakesEachAlternativeOfAPattern) {
  struct Pattern {
    std::string expression;
    std::vector<std::string> valid, invalid;
  };
  const Pattern patterns[] = {
      {"^(?:ab|ac|a|b|abd|)x$", {"abx", "acx", "ax", "bx", "abdx", "x"}, {"", "ab", "adx", "bdx", "abdd"}},
      {"^(?:[ab]c|[ab]d|[a]e|ae*)$", {"ac", "bd", "ae", "a", "aee"}, {"be", "b", "acd"}},
      {"ab|ac|^b|b$", {"ab", "xacx", "bx", "xb"}, {"xbx", "a", ""}},
      {"(?:a(?:b|c)|a(?:b|d))e", {"xabe", "ace", "adex"}, {"ae", "ab", "abce"}},
      {"^(?:a|a)+$", {"a", "aa"}, {"", "b"}},
  };
  for (const auto& [expression, valid, invalid] : patterns) {
    const auto grammar = *CompileSchema(R"({"type":"string","pattern":")" + expression + R"("})");
    for (const std::string& text : valid)
      EXPECT_EQ(Try(grammar, '"' + text + '"'), "accepted") << expression << text;
    for (const std::string& text : invalid)
      EXPECT_NE(Try(grammar, '"' + text + '"'), "accepted") << expression << text;
  }
}

TEST(JsonSchema, KeepsTheLengthOfAFormat) {
  for (const int length : {40, 48, 64, 100, 255, 320, 1000}) {
    SCOPED_TRACE(length);
    const auto compile = [&](const std::string& format) {
      return *CompileSchema(R"({"type":"string","format":")" + format + R"(","maxLength":)" +
                            std::to_string(length) + "}");
    };
    // The length of a text whose parts are as long as the grammar lets them be: a part is what it begins with
    // and a letter that is repeated.
    using Parts = std::vector<std::pair<std::string, char>>;
    const auto longest = [&](const std::string& format, const Parts& parts) {
      const auto grammar = compile(format);
      std::string text = "\"";
      size_t most = 0;
      const auto goes_on = [&] { return !Try(grammar, text).starts_with("refused"); };
      for (const auto& [begin, letter] : parts) {
        const size_t before = text.size();
        text += begin;
        if (!goes_on()) {
          text.resize(before);
          continue;
        }
        do text += letter;
        while (goes_on());
        text.pop_back();
        if (Try(grammar, text + "\"") == "accepted") most = text.size() - 1;
      }
      return static_cast<int>(most);
    };
    const Parts host = {{"a", 'b'}};
    Parts email = {{"a", 'a'}, {".b", 'b'}, {".c", 'c'}, {"@d", 'd'}};
    for (int i = 0; i < 10; ++i) email.emplace_back(".e", 'e');
    const Parts uri = {{"a", 'b'}, {"://h", 'h'}, {"/", 'p'}, {"?", 'q'}, {"#", 'f'}};
    EXPECT_EQ(longest("hostname", host), std::min(length, 63));
    if (length < 48) continue;  // below, URIs are an exact product
    for (const auto& [format, parts] : std::vector<std::pair<std::string, Parts>>{
             {"email", email}, {"uri", uri}, {"uri-reference", uri}, {"iri", uri}}) {
      EXPECT_LE(longest(format, parts), length) << format;
      // Addresses of some lengths have at most 63 characters.
      const int most = format == "email" && length < 200 ? 63 : 160;
      EXPECT_GE(longest(format, parts), std::min(length, most) * 3 / 4) << format;
    }
    EXPECT_EQ(Try(compile("email"), R"("ada@mail.example.org")"), "accepted");
    EXPECT_EQ(Try(compile("hostname"), R"("a.mail.example.org")"), "accepted");
    EXPECT_EQ(Try(compile("email"), R"("a@b@c")"), "refused at 4");
    EXPECT_EQ(Try(compile("uri"), R"("no uri")"), "refused at 3");
    EXPECT_EQ(Try(compile("hostname"), R"("xn--a")"), "refused at 4");
  }
}

}  // namespace
}  // namespace foredraft
