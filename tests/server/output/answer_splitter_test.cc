#include "server/output/answer_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/output/output_stream.h"
#include "server/text/chat_format.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

using testing::IsEmpty;

// Outputs of a V3.1 whose calls are added tokens. They are special here, so that decoded text skips them.
class AnswerSplitterTest : public testing::Test {
 protected:
  std::vector<int32_t> Ids(const std::string& text) {
    return *tokenizer_->Encode(text, {.parse_special = true, .add_bos = false});
  }
  ThinkingIds Thinking() {
    return {.begin = *tokenizer_->AddedTokenId("<think>"), .end = *tokenizer_->AddedTokenId("</think>")};
  }
  AnswerOptions Options(bool thinks = false) {
    return {.syntax = &format_.answers(),
            .begins_in_thinking = thinks,
            .tools = {{.name = "now"}},
            .id_prefix = "call"};
  }
  OutputStream Open(std::vector<std::string> stop = {}, bool parallel = true) {
    OutputSpec spec{.id = 1, .request_id = "r", .prompt_tokens = 3, .stop = std::move(stop)};
    spec.thinking = Thinking();
    spec.answer = Options();
    spec.answer->parallel_calls = parallel;
    spec.arrival = std::chrono::steady_clock::now();
    return OutputStream(std::move(spec), *tokenizer_, metrics_);
  }
  // Applies all tokens but the first as one step each, `finish` with the last.
  OutputDelta Play(OutputStream& stream, const std::vector<int32_t>& ids, FinishReason finish) {
    OutputDelta whole;
    for (size_t i = 0; i < ids.size() && !stream.end().has_value(); ++i) {
      RequestUpdate update{.request_id = 1, .token_ids = {ids[i]}, .first_token = i == 0, .has_step = i > 0};
      if (i + 1 == ids.size()) update.finish = finish;
      whole.Append(stream.Apply(std::move(update), std::chrono::steady_clock::now()));
    }
    return whole;
  }
  double ToolCalls(const std::string& result) {
    for (const prometheus::MetricFamily& family : metrics_.Collect()) {
      if (family.name != "foredraft_tool_calls_total") continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        for (const auto& label : metric.label) {
          if (label.name == "result" && label.value == result) return metric.counter.value;
        }
      }
    }
    return -1;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = DeepseekTokenizer(kV31Template);
  const ChatFormat format_ = *ChatFormat::Create(*tokenizer_);
  Metrics metrics_{{.model_name = "test", .max_draft_len = 7}};
};

constexpr char kCall[] =
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>";
constexpr char kCallsEnd[] = "<｜tool▁calls▁end｜></s>";

TEST_F(AnswerSplitterTest, MarkersAreFoundByIdHoweverTheTextIsCut) {
  const std::vector<int32_t> ids = Ids("12 </think>is </think>3");
  const std::string forged = "</think>";
  for (size_t held = 0; held < 6; ++held) {
    AnswerSplitter splitter(Options(/*thinks=*/true), Thinking(), *tokenizer_);
    AnswerDelta delta;
    std::string text = "12 " + forged;  // spelled out before the token
    for (const char c : text) splitter.AddToken(static_cast<unsigned char>(c), 1);
    splitter.AddToken(Thinking().end, 0);
    text += "is";
    splitter.AddToken('i', 1);
    splitter.AddToken('s', 1);
    const std::string first = text.substr(0, text.size() - held);
    splitter.AddText(first, delta);
    splitter.AddText(text.substr(first.size()), delta);
    splitter.End(delta);
    EXPECT_EQ(delta.thinking, "12 " + forged) << held;
    EXPECT_EQ(delta.text, "is") << held;
  }
}

TEST_F(AnswerSplitterTest, TagsThatAreTextAreInNoPart) {
  // <think> is no special token here, as with R1: its bytes are in the text of the output.
  const auto tokenizer = Tokenizer::Load("deploy/models/abacus/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  const ChatFormat format = *ChatFormat::Create(**tokenizer);
  const ThinkingIds thinking = {.begin = *(*tokenizer)->AddedTokenId("<think>"),
                                .end = *(*tokenizer)->AddedTokenId("</think>")};
  AnswerSplitter splitter({.syntax = &format.answers(), .begins_in_thinking = true}, thinking, **tokenizer);
  AnswerDelta delta;
  EXPECT_EQ(splitter.AddToken(static_cast<int32_t>('a'), 1), 0);
  EXPECT_EQ(splitter.AddToken(thinking.end, 8), 8);
  splitter.AddToken('b', 1);
  splitter.AddText("a</t", delta);  // the rest is held back
  EXPECT_EQ(delta.thinking, "a");
  EXPECT_EQ(delta.text, "");
  splitter.AddText("hink>b", delta);
  splitter.End(delta);
  EXPECT_EQ(delta.thinking, "a");
  EXPECT_EQ(delta.text, "b");
}

// What answers with a constraint have behind their thought, and who counts its bytes.
TEST_F(AnswerSplitterTest, LineEndsBehindAThoughtAreInNoPart) {
  const auto tokenizer = Tokenizer::Load("deploy/models/abacus/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  const ChatFormat format = *ChatFormat::Create(**tokenizer);
  const ThinkingIds thinking = {.begin = *(*tokenizer)->AddedTokenId("<think>"),
                                .end = *(*tokenizer)->AddedTokenId("</think>")};
  struct Case {
    const char* written;
    int allowed;
    const char* text;
  };
  const Case cases[] = {
      {"a\n</think>\n\nyes\n", 2, "yes\n"}, {"a</think>\nyes", 2, "yes"}, {"a</think>\n\n\nyes", 2, "\nyes"},
      {"a</think>yes\n\n", 2, "yes\n\n"},   {"a</think>\n\n", 2, ""},     {"a</think>\n\nyes", 0, "\n\nyes"}};
  for (const Case& one : cases) {
    for (const size_t held : {0, 1, 3}) {  // bytes that come later than their tokens
      SCOPED_TRACE(testing::Message() << one.written << ", held " << held);
      AnswerSplitter splitter(
          {.syntax = &format.answers(), .begins_in_thinking = true, .line_ends_behind_thought = one.allowed},
          thinking, **tokenizer);
      AnswerDelta delta;
      std::string text;
      size_t sent = 0, counted = 0;
      const auto ids = (*tokenizer)->Encode(one.written, {.parse_special = true, .add_bos = false});
      for (const int32_t id : *ids) {
        const auto bytes = static_cast<int32_t>((*tokenizer)->TokenBytes(id).size());
        counted += bytes - splitter.AddToken(id, bytes);
        text += (*tokenizer)->TokenBytes(id);
        if (text.size() <= sent + held) continue;
        splitter.AddText(std::string_view(text).substr(sent, text.size() - held - sent), delta);
        sent = text.size() - held;
      }
      splitter.AddText(std::string_view(text).substr(sent), delta);
      splitter.End(delta);
      EXPECT_EQ(delta.text, one.text);
      EXPECT_EQ(counted, delta.thinking.size() + delta.text.size());
    }
  }
}

TEST_F(AnswerSplitterTest, AStreamWithACall) {
  OutputStream stream = Open();
  const OutputDelta whole = Play(stream, Ids(std::string("Hm.") + kCall + kCallsEnd), FinishReason::kStop);
  EXPECT_EQ(whole.text, "Hm.");
  ASSERT_EQ(whole.calls.size(), 1u);
  EXPECT_EQ(whole.calls[0].id, "call_0");
  EXPECT_EQ(whole.calls[0].name, "now");
  EXPECT_EQ(whole.calls[0].arguments, "{\"a\": 1}");
  EXPECT_TRUE(whole.calls[0].complete);
  EXPECT_STREQ(FinishReasonName(*stream.end()), "tool_calls");
  EXPECT_EQ(stream.end()->finish, FinishReason::kStop);
  EXPECT_EQ(whole.marks.size(), whole.token_ids.size());
  EXPECT_EQ(whole.token_ids.size(), Ids(std::string("Hm.") + kCall + kCallsEnd).size());
  EXPECT_EQ(stream.stats().completion_tokens, static_cast<int>(whole.token_ids.size()));
  EXPECT_EQ(ToolCalls("complete"), 1);
  EXPECT_EQ(ToolCalls("incomplete"), 0);
  EXPECT_EQ(ToolCalls("text"), 0);
}

TEST_F(AnswerSplitterTest, AStopStringWithinACallEndsItThere) {
  OutputStream stream = Open({"\": 1"});
  const OutputDelta whole = Play(stream, Ids(std::string("Hm.") + kCall + kCallsEnd), FinishReason::kStop);
  ASSERT_EQ(whole.calls.size(), 1u);
  EXPECT_EQ(whole.calls[0].arguments, "{\"a");
  EXPECT_FALSE(whole.calls[0].complete);
  EXPECT_STREQ(FinishReasonName(*stream.end()), "stop");
  EXPECT_EQ(stream.end()->matched_stop, "\": 1");
  EXPECT_TRUE(stream.ended_by_text());
  EXPECT_EQ(ToolCalls("incomplete"), 1);
}

TEST_F(AnswerSplitterTest, AStopStringBehindCallsIsTheReason) {
  OutputStream stream = Open({"END"});
  const OutputDelta whole =
      Play(stream, Ids(std::string(kCall) + "<｜tool▁calls▁end｜>aEND</s>"), FinishReason::kStop);
  ASSERT_EQ(whole.calls.size(), 1u);
  EXPECT_TRUE(whole.calls[0].complete);
  EXPECT_EQ(whole.text, "a");
  EXPECT_STREQ(FinishReasonName(*stream.end()), "stop");
}

TEST_F(AnswerSplitterTest, TheLimitWithinACallLeavesItIncomplete) {
  OutputStream stream = Open();
  std::vector<int32_t> ids = Ids(std::string("Hm.") + kCall);
  ids.resize(ids.size() - 3);
  const OutputDelta whole = Play(stream, ids, FinishReason::kLength);
  ASSERT_EQ(whole.calls.size(), 1u);
  EXPECT_EQ(whole.calls[0].arguments, "{\"a\":");
  EXPECT_STREQ(FinishReasonName(*stream.end()), "length");
}

TEST_F(AnswerSplitterTest, ACallOfAnUnknownToolIsText) {
  OutputStream stream = Open();
  std::string written = std::string("Hm.") + kCall + kCallsEnd;
  written.replace(written.find("now"), 3, "then");
  const OutputDelta whole = Play(stream, Ids(written), FinishReason::kStop);
  EXPECT_THAT(whole.calls, IsEmpty());
  EXPECT_EQ(whole.text, "Hm.then{\"a\": 1}");
  EXPECT_STREQ(FinishReasonName(*stream.end()), "stop");
  EXPECT_EQ(ToolCalls("text"), 1);
}

// Tokens behind the first call are not the client's, as behind a stop string.
TEST_F(AnswerSplitterTest, WithoutParallelCallsTheStreamEndsBehindTheFirst) {
  OutputStream stream = Open({}, /*parallel=*/false);
  const std::vector<int32_t> first = Ids(std::string("Hm.") + kCall);
  RequestUpdate begin{.request_id = 1, .token_ids = {first[0]}, .first_token = true};
  OutputDelta whole = stream.Apply(std::move(begin), std::chrono::steady_clock::now());
  std::vector<int32_t> rest(first.begin() + 1, first.end());
  for (const int32_t id : Ids(std::string(kCall) + kCallsEnd)) rest.push_back(id);
  // Steps of at most 8 tokens, as the engine has them.
  for (size_t at = 0; at < rest.size() && !stream.end().has_value(); at += 8) {
    RequestUpdate part{.request_id = 1, .has_step = true};
    part.token_ids.assign(rest.begin() + static_cast<long>(at),
                          rest.begin() + static_cast<long>(std::min(at + 8, rest.size())));
    part.step = {.drafts_verified = 7, .accepted = static_cast<int>(part.token_ids.size()) - 1};
    whole.Append(stream.Apply(std::move(part), std::chrono::steady_clock::now()));
  }
  ASSERT_TRUE(stream.end().has_value());
  EXPECT_TRUE(stream.ended_by_text());
  EXPECT_STREQ(FinishReasonName(*stream.end()), "tool_calls");
  EXPECT_EQ(whole.token_ids, first);
  ASSERT_EQ(whole.calls.size(), 1u);
  EXPECT_TRUE(whole.calls[0].complete);
  EXPECT_EQ(stream.stats().completion_tokens, 1 + stream.stats().steps + stream.stats().accepted_tokens);
}

}  // namespace
}  // namespace foredraft
