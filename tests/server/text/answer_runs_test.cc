// The order of an answer's parts, and that it does not depend on how the answer is cut.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/text/answer_parser.h"
#include "server/text/chat_format.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

// The order in which the model wrote its parts, which the texts alone do not tell.
TEST(AnswerRuns, AreTheOrderOfTheParts) {
  using Part = AnswerRun::Part;
  const auto tokenizer = DeepseekTokenizer(kV31Template);
  const ChatFormat format = *ChatFormat::Create(*tokenizer);
  const CallSyntax& calls = format.answers().calls();
  const auto call = [&](const std::string& arguments) {
    return calls.call + "now" + calls.name_end + arguments + calls.call_end;
  };
  AnswerParser parser({.syntax = &format.answers(), .begins_in_thinking = true, .tools = {{.name = "now"}}});
  AnswerDelta delta;
  parser.Feed("abc" + MarkText(kEndThinkingMark) + "de" + calls.begin + call("{}") + call("{\"a\": 1}") +
                  calls.end + "fghi",
              delta);
  parser.End(delta);
  EXPECT_EQ(delta.text, "defghi");
  EXPECT_EQ(delta.runs, (std::vector<AnswerRun>{{Part::kThinking, 0, 3},
                                                {Part::kText, 0, 2},
                                                {Part::kCall, 0, 2},
                                                {Part::kCall, 1, 8},
                                                {Part::kText, 0, 4}}));
}

// Kimi begins a section of calls within a thought at times.
TEST(AnswerRuns, ASectionOfKimiEndsAThought) {
  using Part = AnswerRun::Part;
  const auto tokenizer = KimiTokenizer(kKimi26Template);
  const ChatFormat format = *ChatFormat::Create(*tokenizer, "");
  const CallSyntax& calls = format.answers().calls();
  const std::string marked = "Hm." + calls.begin + calls.call + "functions.now:3" + calls.name_end + "{}" +
                             calls.call_end + calls.end + "b";
  for (const bool has_tools : {true, false}) {
    AnswerOptions options = {.syntax = &format.answers(), .begins_in_thinking = true};
    if (has_tools) options.tools = {{.name = "now"}};
    AnswerParser parser(options);
    AnswerDelta delta;
    for (size_t i = 0; i < marked.size(); ++i) {  // a mark is two bytes
      const size_t size = marked[i] == kMarkByte ? 2 : 1;
      parser.Feed(marked.substr(i, size), delta);
      i += size - 1;
    }
    parser.End(delta);
    if (!has_tools) {
      EXPECT_EQ(delta.text, "");
      EXPECT_EQ(delta.thinking.substr(0, 3), "Hm.");
      continue;
    }
    EXPECT_EQ(delta.thinking, "Hm.");
    EXPECT_EQ(delta.text, "b");
    ASSERT_EQ(delta.runs.size(), 3u);
    EXPECT_EQ(delta.runs[1].part, Part::kCall);
  }
}

}  // namespace
}  // namespace foredraft
