#include "client/answer_printer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foredraft {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr v1::TokenOrigin kFirst = v1::TOKEN_ORIGIN_FIRST, kTarget = v1::TOKEN_ORIGIN_TARGET,
                          kDrafted = v1::TOKEN_ORIGIN_DRAFTED;

struct Token {
  std::string text;
  v1::TokenOrigin origin = kTarget;
};

v1::GenerateChunk Chunk(const std::vector<Token>& tokens, int thinking_tokens = 0) {
  v1::GenerateChunk chunk;
  for (const Token& token : tokens) {
    chunk.mutable_text()->append(token.text);
    chunk.add_token_ids(7);
    chunk.add_token_origins(token.origin);
    chunk.add_token_text_bytes(static_cast<int>(token.text.size()));
  }
  chunk.mutable_usage()->set_thinking_tokens(thinking_tokens);
  return chunk;
}

// All chunks of one answer.
std::string Shown(const AnswerStyle& style, const std::vector<v1::GenerateChunk>& chunks) {
  AnswerPrinter answer(style);
  std::string out;
  for (const v1::GenerateChunk& chunk : chunks) out += answer.Add(chunk);
  return out + answer.End();
}

const std::vector<Token> kThinkingAnswer = {{"5+81", kFirst},      {"=", kDrafted},     {"86", kDrafted},
                                            {"</think>", kTarget}, {"\nThe", kDrafted}, {" answer"},
                                            {" is 86.", kDrafted}};

TEST(AnswerPrinter, NamesTheSectionsAndLeavesTheTagsOutWithoutColour) {
  EXPECT_EQ(Shown({}, {Chunk(kThinkingAnswer, 3)}), "thinking: 5+81=86\nanswer: The answer is 86.");
  EXPECT_EQ(Shown({}, {Chunk({{"only an answer"}})}), "only an answer");
  EXPECT_EQ(Shown({.thinking = false}, {Chunk(kThinkingAnswer, 3)}), "The answer is 86.");
}

TEST(AnswerPrinter, DimsThinkingWithColour) {
  EXPECT_EQ(Shown({.colour = true}, {Chunk(kThinkingAnswer, 3)}),
            "\x1b[0m\x1b[2m5+81=86\x1b[0m\nThe answer is 86.");
}

TEST(AnswerPrinter, PutsDraftsInBracketsOrInGreen) {
  EXPECT_EQ(Shown({.drafts = true}, {Chunk(kThinkingAnswer, 3)}),
            "thinking: 5+81[=86]\nanswer: [The] answer[ is 86.]");
  const std::string green = Shown({.colour = true, .drafts = true}, {Chunk(kThinkingAnswer, 3)});
  EXPECT_THAT(green, HasSubstr("\x1b[2m\x1b[36m5+81\x1b[0m\x1b[2m\x1b[32m=86"));
  EXPECT_THAT(green, HasSubstr("\x1b[32mThe\x1b[0m answer\x1b[0m\x1b[32m is 86.\x1b[0m"));
  EXPECT_THAT(green, Not(HasSubstr("think>")));
}

TEST(AnswerPrinter, LineBreaksStayWithinASectionAndOutsideOfBrackets) {
  const std::vector<Token> tokens = {
      {"a\n"}, {"b.\n", kDrafted}, {"c\n\n"}, {"</think>"}, {"\n\nd\n", kDrafted}};
  EXPECT_EQ(Shown({.drafts = true}, {Chunk(tokens, 3)}), "thinking: a\n[b.]\nc\nanswer: [d]");
  EXPECT_EQ(Shown({.drafts = true}, {Chunk({tokens.begin(), tokens.begin() + 2}, 3),
                                     Chunk({tokens.begin() + 2, tokens.end()}, 3)}),
            "thinking: a\n[b.]\nc\nanswer: [d]");
}

TEST(AnswerPrinter, OnATerminalTheModelsTextCannotDriveIt) {
  const std::vector<Token> tokens = {{"a\n\tb\x1b[2J"}, {"\xc2\x9b\x31m\xe4\xb8\xad"}};
  EXPECT_EQ(Shown({.escapes = true}, {Chunk(tokens)}), "a\n\tb\\x1b[2J\\u009b1m\xe4\xb8\xad");
  EXPECT_EQ(Shown({}, {Chunk(tokens)}), "a\n\tb\x1b[2J\xc2\x9b\x31m\xe4\xb8\xad");
}

// However the tokens are spread over chunks.
TEST(AnswerPrinter, ShowsTheSameHoweverTheTextIsCut) {
  const std::string whole = Shown({.drafts = true}, {Chunk(kThinkingAnswer, 3)});
  for (size_t cut = 1; cut < kThinkingAnswer.size(); ++cut) {
    const auto middle = kThinkingAnswer.begin() + static_cast<std::ptrdiff_t>(cut);
    EXPECT_EQ(Shown({.drafts = true},
                    {Chunk({kThinkingAnswer.begin(), middle}, 1), Chunk({middle, kThinkingAnswer.end()}, 3)}),
              whole)
        << cut;
  }
}

// The server holds back text that may begin a stop string: it comes after the tokens that it belongs to.
TEST(AnswerPrinter, HeldBackTextKeepsTheOriginOfItsTokens) {
  v1::GenerateChunk first = Chunk({{"a", kFirst}, {"bc", kDrafted}, {"d"}});
  v1::GenerateChunk second = Chunk({{"e", kDrafted}, {"f"}});
  first.set_text("ab");
  second.set_text("cdef");
  EXPECT_EQ(Shown({.drafts = true}, {first, second}), "a[bc]d[e]f");
}

TEST(AnswerPrinter, APromptThatEndedInThinkingIsKnownFromTheFirstChunk) {
  EXPECT_EQ(Shown({}, {Chunk({{"<think>"}, {"a"}, {"</think>"}, {"b"}}, 1)}), "thinking: a\nanswer: b");
  EXPECT_EQ(Shown({}, {Chunk({{"</think>"}, {"b"}})}), "b");
  EXPECT_EQ(Shown({}, {Chunk({{"a"}, {"<think>"}, {"b"}}, 1)}), "a\nthinking: b");
}

TEST(AnswerPrinter, AChatsPartsComeApart) {
  v1::GenerateChunk first = Chunk({{"b", kDrafted}}), second = Chunk({{"c"}}), third;
  first.set_thinking("a<think>");
  first.add_token_origins(kFirst);
  first.mutable_token_text_bytes()->Set(0, 8);  // the thinking's token, then the text's
  first.add_token_text_bytes(1);
  first.mutable_token_origins()->SwapElements(0, 1);
  third.set_text("\nd");
  v1::ToolCall& call = *third.add_tool_calls();
  call.set_name("add");
  call.set_arguments("{\"a\": \"\x1b[2J\"}");
  v1::GenerateChunk last;
  last.set_text("e");
  EXPECT_EQ(Shown({.drafts = true, .apart = true, .escapes = true}, {first, second, third, last}),
            "thinking: a<think>\nanswer: [b]c\nd\ncall add {\"a\": \"\\x1b[2J\"}\ne");
}

TEST(AnswerPrinter, TheLegendCountsTokensOfEachOrigin) {
  AnswerPrinter plain({.drafts = true}), green({.colour = true, .drafts = true});
  plain.Add(Chunk(kThinkingAnswer, 3));
  green.Add(Chunk(kThinkingAnswer, 3));
  EXPECT_EQ(plain.Legend(), "tokens: 4 [drafted and accepted], 2 of the target, 1 of the prefill");
  EXPECT_THAT(green.Legend(), HasSubstr("\x1b[32m4 drafted and accepted\x1b[0m, 2 of the target"));
}

TEST(TokenSpans, TextPastTheLastTokenBelongsToIt) {
  TokenSpans spans;
  EXPECT_EQ(spans.Divide("x", 0).at(0).origin, v1::TOKEN_ORIGIN_UNSPECIFIED);
  spans.Add(Chunk({{"ab", kDrafted}}));
  const auto pieces = spans.Divide("abc", 0);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].text, "abc");
  EXPECT_EQ(pieces[0].origin, kDrafted);
}

}  // namespace
}  // namespace foredraft
