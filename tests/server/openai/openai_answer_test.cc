#include "server/api/openai/openai_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error_reason.h"
#include "server/api/openai/openai_error.h"

namespace foredraft {
namespace {

using nlohmann::json;

const Tokenizer& Abacus() {
  static const std::unique_ptr<Tokenizer> tokenizer = *Tokenizer::Load("deploy/models/abacus/tokenizer.json");
  return *tokenizer;
}

// A delta of these tokens, all of them text.
OutputDelta DeltaOf(const std::vector<int32_t>& ids) {
  OutputDelta delta{.token_ids = ids};
  for (const int32_t id : ids) {
    const std::string text(Abacus().TokenBytes(id));
    delta.text += text;
    delta.marks.push_back({.text_bytes = static_cast<int32_t>(text.size())});
  }
  return delta;
}

std::vector<int32_t> Ids(const std::string& text) {
  return *Abacus().Encode(text, {.parse_special = true, .add_bos = false});
}

AnswerShape ShapeOf(OpenAiKind kind) {
  return {.kind = kind,
          .id = "x-1",
          .model = "abacus",
          .created = 7,
          .has_logprobs = true,
          .return_token_ids = true,
          .tokenizer = &Abacus()};
}

OutputDelta WithLogprobs(OutputDelta delta) {
  for (const int32_t id : delta.token_ids) {
    delta.logprobs.push_back({.token_id = id, .logprob = -0.5f, .top = {{.token_id = id, .logprob = -0.5f}}});
  }
  delta.stats = {.prompt_tokens = 4,
                 .completion_tokens = static_cast<int>(delta.token_ids.size()),
                 .cached_tokens = 2,
                 .thinking_tokens = 1,
                 .steps = 4,
                 .draft_tokens = 8,
                 .accepted_tokens = 3,
                 .accepted_at = {2, 1},
                 .queue_ms = 1,
                 .ttft_ms = 2,
                 .total_ms = 10};
  return delta;
}

TEST(OpenAiAnswer, AWholeChatHasThinkingApartAndLogprobsPerToken) {
  const std::vector<int32_t> ids = Ids("1+2</think>3");
  ChoiceEnd end{.whole = WithLogprobs(DeltaOf(ids)),
                .end = {.finish = FinishReason::kStop, .matched_stop = "4"},
                .labels = {.seed = 9, .max_draft_len = 3}};
  end.whole.thinking = "1+2";
  end.whole.text = "3";
  const json body = json::parse(WholeBody(ShapeOf(OpenAiKind::kChat), {end, end}, 2));
  EXPECT_EQ(body["object"], "chat.completion");
  const json& choice = body["choices"][1];
  EXPECT_EQ(choice["index"], 1);
  EXPECT_EQ(choice["message"]["reasoning_content"], "1+2");
  EXPECT_EQ(choice["message"]["content"], "3");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "4");
  EXPECT_EQ(choice["seed"], 9);
  EXPECT_EQ(choice["token_ids"], ids);
  EXPECT_EQ(choice["token_origins"], json(std::vector<std::string>(ids.size(), "target")));
  EXPECT_EQ(choice["token_text_bytes"].size(), ids.size());
  EXPECT_EQ(choice["speculation"], (json{{"steps", 4},
                                         {"draft_tokens", 8},
                                         {"accepted_tokens", 3},
                                         {"accepted_per_position", {2, 1, 0}},
                                         {"accepted_histogram", {2, 1, 1, 0}}}));
  EXPECT_EQ(choice["timing"],
            (json{{"queue_ms", 1.0}, {"ttft_ms", 2.0}, {"total_ms", 10.0}, {"tokens_per_second", 500.0}}));
  const json& content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), ids.size());
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], content[0]["token"]);
  EXPECT_EQ(content[0]["bytes"][0], static_cast<int>('1'));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 4);  // a prompt counts once
  EXPECT_EQ(body["usage"]["completion_tokens"], 2 * ids.size());
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], 6);
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["rejected_prediction_tokens"], 10);
}

TEST(OpenAiAnswer, TextOffsetsGoOnFromChunkToChunk) {
  const ResponseLabels labels;
  ChoiceProgress progress;
  const AnswerShape shape = ShapeOf(OpenAiKind::kCompletion);
  std::string text;
  for (const std::string piece : {"12 +", " 3 ="}) {
    const std::string event =
        ChunkEvent(shape, 0, WithLogprobs(DeltaOf(Ids(piece))), nullptr, labels, progress);
    const json choice = json::parse(event.substr(6))["choices"][0];
    const json& logprobs = choice["logprobs"];
    for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
      EXPECT_EQ(logprobs["text_offset"][i], text.size());
      text += logprobs["tokens"][i].get<std::string>();
    }
    EXPECT_EQ(choice["finish_reason"], nullptr);
  }
  EXPECT_EQ(text, "12 + 3 =");
}

TEST(OpenAiAnswer, AStreamsFirstChunkHasTheRoleAndEmptyOnesAreLeftOut) {
  AnswerShape shape = ShapeOf(OpenAiKind::kChat);
  shape.has_logprobs = false;
  const ResponseLabels labels;
  ChoiceProgress progress;
  json first = json::parse(ChunkEvent(shape, 0, DeltaOf(Ids("1")), nullptr, labels, progress).substr(6));
  EXPECT_EQ(first["choices"][0]["delta"], (json{{"role", "assistant"}, {"content", "1"}}));
  EXPECT_TRUE(first["choices"][0].contains("speculation"));
  EXPECT_FALSE(first["choices"][0].contains("timing"));  // only at the end
  shape.return_token_ids = false;
  first = json::parse(ChunkEvent(shape, 0, DeltaOf(Ids("1")), nullptr, labels, progress).substr(6));
  for (const char* asked : {"token_ids", "token_origins", "token_text_bytes", "speculation"}) {
    EXPECT_FALSE(first["choices"][0].contains(asked)) << asked;
  }
  EXPECT_EQ(ChunkEvent(shape, 0, {}, nullptr, labels, progress), "");
  const OutputEnd end{.finish = FinishReason::kLength};
  const json last = json::parse(ChunkEvent(shape, 0, {}, &end, labels, progress).substr(6));
  EXPECT_EQ(last["choices"][0]["delta"], json::object());
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
}

TEST(OpenAiAnswer, AWholeChatHasItsCalls) {
  AnswerShape shape = ShapeOf(OpenAiKind::kChat);
  shape.has_logprobs = shape.return_token_ids = false;
  ChoiceEnd end{.end = {.finish = FinishReason::kStop, .called_tools = true}};
  end.whole.calls = {{.index = 0, .id = "a_0", .name = "f", .arguments = "{\"x\": 1}", .complete = true},
                     {.index = 1, .id = "a_1", .name = "g", .arguments = "{}", .complete = true}};
  const json choice = json::parse(WholeBody(shape, {end}, 1))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["stop_reason"], nullptr);
  EXPECT_EQ(choice["message"]["content"], nullptr);
  EXPECT_EQ(
      choice["message"]["tool_calls"],
      json::parse(R"([{"id": "a_0", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
                            {"id": "a_1", "type": "function", "function": {"name": "g", "arguments": "{}"}}])"));
  end.whole.text = "Hm.";
  EXPECT_EQ(json::parse(WholeBody(shape, {end}, 1))["choices"][0]["message"]["content"], "Hm.");
}

TEST(OpenAiAnswer, AStreamsCallsComePieceByPiece) {
  AnswerShape shape = ShapeOf(OpenAiKind::kChat);
  shape.has_logprobs = shape.return_token_ids = false;
  ChoiceProgress progress;
  const auto delta_of = [&](std::vector<CallDelta> calls) {
    OutputDelta delta;
    delta.calls = std::move(calls);
    const std::string event = ChunkEvent(shape, 0, delta, nullptr, {}, progress);
    return event.empty() ? json() : json::parse(event.substr(6))["choices"][0]["delta"];
  };
  EXPECT_EQ(delta_of({{.index = 0, .id = "a_0", .name = "f"}}),
            json::parse(R"({"role": "assistant", "tool_calls": [{"index": 0, "id": "a_0", "type": "function",
                            "function": {"name": "f", "arguments": ""}}]})"));
  EXPECT_EQ(delta_of({{.index = 0, .arguments = "{\"x\""}}),
            json::parse(R"({"tool_calls": [{"index": 0, "function": {"arguments": "{\"x\""}}]})"));
  EXPECT_EQ(delta_of({{.index = 0, .complete = true}}), json());  // nothing that a client sees
  EXPECT_EQ(delta_of({{.index = 0, .arguments = ": 1}", .complete = true},
                      {.index = 1, .id = "a_1", .name = "g", .arguments = "{}", .complete = true}}),
            json::parse(R"({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}},
                            {"index": 1, "id": "a_1", "type": "function",
                             "function": {"name": "g", "arguments": "{}"}}]})"));
}

TEST(OpenAiAnswer, ErrorsHaveOpenAisShapeAndTheDaemonsText) {
  const struct {
    absl::Status status;
    int http;
    const char* param;
    const char* text = nullptr;  // with the client's names; null: the status's
  } cases[] = {
      {absl::InvalidArgumentError("sampling.top_p: 2, allowed above 0 to 1"), 400, "top_p",
       "top_p: 2, allowed above 0 to 1"},
      {absl::InvalidArgumentError("chat.messages[1].role: \"x\", allowed user"), 400, "messages[1].role",
       "messages[1].role: \"x\", allowed user"},
      {absl::InvalidArgumentError("chat.tools[0].name: \"\", allowed 1"), 400, "tools[0].name",
       "tools[0].name: \"\", allowed 1"},
      {absl::InvalidArgumentError("chat.tool_choice: \"chat.x\\\" max_tokens\", allowed one of chat.tools."),
       400, "tool_choice", "tool_choice: \"chat.x\\\" max_tokens\", allowed one of tools."},
      {absl::InvalidArgumentError("logprobs: 30, allowed 0..20"), 400, "top_logprobs",
       "top_logprobs: 30, allowed 0..20"},
      {absl::InvalidArgumentError("max_tokens: prompt 3 + max_tokens 5 is 8, max_seq_len is 7"), 400,
       "max_completion_tokens",
       "max_completion_tokens: prompt 3 + max_completion_tokens 5 is 8, max_seq_len is 7"},
      {absl::UnauthenticatedError("no token"), 401, nullptr},
      {absl::PermissionDeniedError("the token x"), 403, nullptr},
      {absl::NotFoundError("model: x"), 404, nullptr},
      {WithReason(absl::ResourceExhaustedError("full: 3"), kReasonQueueFull), 429, nullptr},
      {WithReason(absl::ResourceExhaustedError("out of memory: x"), kReasonOutOfMemory), 503, nullptr},
      {absl::UnavailableError("loading: the model"), 503, nullptr},
      {absl::DeadlineExceededError("late"), 504, nullptr},
      {absl::InternalError("bug, request r-1"), 500, nullptr},
  };
  for (const auto& [status, http, param, text] : cases) {
    const HttpAnswer answer = ErrorAnswer({NotedWire::kChat, "max_completion_tokens"}, status);
    EXPECT_EQ(answer.status, http);
    const json error = json::parse(answer.body)["error"];
    EXPECT_EQ(error["message"], text == nullptr ? std::string(status.message()) : text);
    EXPECT_EQ(error["param"], param == nullptr ? json(nullptr) : json(param));
    EXPECT_TRUE(error["type"].is_string() && error["code"].is_string());
    const bool again = http == 429 || http == 503;
    EXPECT_EQ(std::count(answer.headers.begin(), answer.headers.end(),
                         std::pair<std::string, std::string>("Retry-After", "1")),
              again ? 1 : 0);
  }
}

TEST(OpenAiAnswer, LeavesOutWhatTheRequestDoesNotWant) {
  AnswerShape shape = ShapeOf(OpenAiKind::kChat);
  shape.hides_thinking = true;
  shape.tokens_as_ids = true;
  OutputDelta delta = WithLogprobs(DeltaOf(Ids("1")));
  delta.thinking = "thought";
  delta.text = "3";
  const int32_t id = delta.token_ids[0];
  ChoiceProgress progress;
  const std::string event = ChunkEvent(shape, 0, delta, nullptr, {}, progress);
  EXPECT_EQ(event.find("reasoning_content"), std::string::npos) << event;
  const json body =
      json::parse(WholeBody(shape, {{.whole = delta, .end = {.finish = FinishReason::kStop}}}, 1));
  EXPECT_TRUE(body["choices"][0]["message"]["reasoning_content"].is_null());
  EXPECT_EQ(body["choices"][0]["message"]["content"], "3");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 1) << "it is counted";
  const json& logprob = body["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(logprob["token"], "token_id:" + std::to_string(id));
  EXPECT_EQ(logprob["top_logprobs"][0]["token"], "token_id:" + std::to_string(id));
}

TEST(OpenAiAnswer, HasUsageInEveryChunkWhereAsked) {
  AnswerShape shape = {
      .kind = OpenAiKind::kChat, .id = "x", .model = "abacus", .include_usage = true, .tokenizer = &Abacus()};
  OutputDelta held = WithLogprobs(DeltaOf(Ids("1")));
  held.text.clear();  // a stop string may begin in it
  ChoiceProgress progress;
  progress.has_begun = true;
  EXPECT_EQ(ChunkEvent(shape, 0, held, nullptr, {}, progress), "");
  shape.continuous_usage = true;
  const std::string event = ChunkEvent(shape, 0, held, nullptr, {}, progress);
  const json usage = json::parse(event.substr(6))["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 4);
  EXPECT_EQ(usage["completion_tokens"], 1);
}

TEST(OpenAiAnswer, CallsOfCustomToolsHaveATextHoweverTheyAreCut) {
  AnswerShape shape = ShapeOf(OpenAiKind::kChat);
  shape.has_logprobs = shape.return_token_ids = false;
  shape.custom_tools = {"patch"};
  const std::string arguments = R"({"input": "a \"b\" \u00fc"})";
  ChoiceEnd end{.end = {.finish = FinishReason::kStop, .called_tools = true}};
  end.whole.calls = {{.index = 0, .id = "c0", .name = "now", .arguments = "{}"},
                     {.index = 1, .id = "c1", .name = "patch", .arguments = arguments}};
  const json calls = json::parse(WholeBody(shape, {end}, 1))["choices"][0]["message"]["tool_calls"];
  EXPECT_EQ(calls[0]["function"]["name"], "now");
  EXPECT_EQ(
      calls[1],
      (json{{"id", "c1"}, {"type", "custom"}, {"custom", {{"name", "patch"}, {"input", "a \"b\" ü"}}}}));
  for (const size_t cut : {1, 3, 100}) {
    ChoiceProgress progress;
    std::string input;
    for (size_t at = 0; at < arguments.size(); at += cut) {
      OutputDelta delta;
      delta.calls = {{.index = 1, .arguments = arguments.substr(at, cut)}};
      if (at == 0) delta.calls[0].id = "c1";
      if (at == 0) delta.calls[0].name = "patch";
      const std::string event = ChunkEvent(shape, 0, delta, nullptr, {}, progress);
      if (event.empty()) continue;
      const json call = json::parse(event.substr(6))["choices"][0]["delta"]["tool_calls"][0];
      EXPECT_EQ(call.contains("id"), at == 0);
      input += call["custom"]["input"].get<std::string>();
    }
    EXPECT_EQ(input, "a \"b\" ü") << cut;
  }
}

}  // namespace
}  // namespace foredraft
