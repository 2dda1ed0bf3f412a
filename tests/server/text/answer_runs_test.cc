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

}  // namespace
}  // namespace foredraft
