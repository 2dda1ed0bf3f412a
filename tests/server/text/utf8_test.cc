#include "server/text/utf8.h"

#include <gtest/gtest.h>

namespace foredraft {
namespace {

struct Utf8Case {
  const char* name;
  std::string bytes;
  size_t first_invalid;
  std::string repaired;
};

// Replacements as in Unicode's tables 3-8 to 3-11: one U+FFFD for each longest ill-formed prefix.
const Utf8Case kUtf8Cases[] = {
    {"Empty", "", 0, ""},
    {"Ascii", "abc", 3, "abc"},
    {"AllLengths", "a\u00e9\u4e2d\U0001F600", 10, "a\u00e9\u4e2d\U0001F600"},
    {"LastOfAll", "\xF4\x8F\xBF\xBF", 4, "\xF4\x8F\xBF\xBF"},
    {"PastTheLast", "\xF4\x90\x80\x80", 0, "\ufffd\ufffd\ufffd\ufffd"},
    {"LoneTail", "a\x80", 1, "a\ufffd"},
    {"Overlong", "\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", 0,
     "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\x41"},
    {"Surrogates", "\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", 0,
     "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\x41"},
    {"Truncated", "\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", 0, "\ufffd\ufffd\ufffd\ufffd\x41"},
    {"CutAtTheEnd", "x\xF0\x9F\x98", 1, "x\ufffd"},
    {"NoSuchLead", "\xFF\xF5", 0, "\ufffd\ufffd"},
};

TEST(Utf8, FindsTheFirstInvalidByte) {
  for (const Utf8Case& test_case : kUtf8Cases) {
    EXPECT_EQ(FirstInvalidUtf8(test_case.bytes), test_case.first_invalid) << test_case.name;
  }
}

TEST(Utf8Repair, RepairsAlikeWhereverTheStreamIsCut) {
  for (const Utf8Case& test_case : kUtf8Cases) {
    for (size_t first = 0; first <= test_case.bytes.size(); ++first) {
      for (size_t second = first; second <= test_case.bytes.size(); ++second) {
        Utf8Repair repair;
        std::string text = repair.Append(test_case.bytes.substr(0, first));
        text += repair.Append(test_case.bytes.substr(first, second - first));
        text += repair.Append(test_case.bytes.substr(second));
        text += repair.Flush();
        EXPECT_EQ(text, test_case.repaired) << test_case.name << " cut at " << first << " and " << second;
      }
    }
  }
}

TEST(Utf8Repair, HoldsBackOnlyAnIncompleteCharacter) {
  Utf8Repair repair;
  EXPECT_EQ(repair.Append("a\xF0\x9F"), "a");
  EXPECT_EQ(repair.Append("\x98"), "");
  EXPECT_EQ(repair.Append("\x80z\xC3"), "\U0001F600z");
  EXPECT_EQ(repair.Flush(), "\ufffd");
  EXPECT_EQ(repair.Flush(), "");
}

TEST(Utf8, WritesWhatItReads) {
  for (char32_t code_point = 0; code_point < 0x110000; code_point += code_point < 0x3000 ? 1 : 61) {
    if (code_point >= 0xD800 && code_point < 0xE000) continue;
    std::string text;
    AppendUtf8(code_point, text);
    const Utf8Step step = ReadUtf8(text);
    ASSERT_EQ(step.kind, Utf8Step::kCharacter) << static_cast<uint32_t>(code_point);
    ASSERT_EQ(step.code_point, code_point);
    ASSERT_EQ(step.byte_count, static_cast<int>(text.size()));
  }
}

TEST(Utf8, StripsWhiteSpaceAsPythonDoes) {
  EXPECT_EQ(StripWhiteSpace(" \t\n\x1f\u0085\u00a0\u3000a b\u2028\u205f "), "a b");
  EXPECT_EQ(StripWhiteSpace("\u200b a\u180e"), "\u200b a\u180e");
  EXPECT_EQ(StripWhiteSpace(" \n"), "");
  EXPECT_EQ(StripWhiteSpace("\xFF \xE3\x80"), "\xFF \xE3\x80");
}

}  // namespace
}  // namespace foredraft
