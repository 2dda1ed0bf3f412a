#include <gtest/gtest.h>

#include "client/answer_printer.h"

namespace foredraft {
namespace {

// All parts of one kind, joined.
struct Divided {
  std::string thinking, answer;
};

Divided Divide(bool is_thinking, const std::vector<std::string>& pieces) {
  ThinkingText text(is_thinking);
  Divided divided;
  const auto take = [&divided](const std::vector<TextPart>& parts) {
    for (const TextPart& part : parts) {
      EXPECT_FALSE(part.text.empty());
      (part.is_thinking ? divided.thinking : divided.answer) += part.text;
    }
  };
  for (const std::string& piece : pieces) take(text.Add(piece));
  take(text.End());
  return divided;
}

TEST(ThinkingText, DividesHoweverTheTextIsCut) {
  const std::string whole = "5 + 81 < 100</think>\nThe answer is 86. <think>again</think> <b>";
  for (size_t first = 0; first <= whole.size(); ++first) {
    for (size_t second = first; second <= whole.size(); ++second) {
      const Divided divided =
          Divide(true, {whole.substr(0, first), whole.substr(first, second - first), whole.substr(second)});
      EXPECT_EQ(divided.thinking, "5 + 81 < 100again");
      EXPECT_EQ(divided.answer, "\nThe answer is 86.  <b>");
    }
  }
}

TEST(ThinkingText, KnowsWhereEachPartBegins) {
  const std::string whole = "ab</think>cd<think>e<";
  ThinkingText text(true);
  std::vector<TextPart> parts = text.Add(whole);
  for (TextPart& part : text.End()) parts.push_back(std::move(part));
  ASSERT_EQ(parts.size(), 4u);
  for (const TextPart& part : parts) EXPECT_EQ(whole.substr(part.begin, part.text.size()), part.text);
}

TEST(ThinkingText, ShowsTextAtOnceUnlessItMayBeginATag) {
  ThinkingText text(false);
  EXPECT_EQ(text.Add("abc").at(0).text, "abc");
  EXPECT_EQ(text.Add("d<th").at(0).text, "d");
  EXPECT_EQ(text.Add("e").at(0).text, "<the");
}

TEST(ThinkingText, AClosingTagThatNothingOpenedIsText) {
  EXPECT_EQ(Divide(false, {"a</think>b"}).answer, "a</think>b");
}

TEST(ThinkingText, AnUnfinishedTagIsTextAtTheEnd) { EXPECT_EQ(Divide(true, {"a</thi"}).thinking, "a</thi"); }

}  // namespace
}  // namespace foredraft
