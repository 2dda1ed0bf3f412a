// Calls of tools through both wires. The rank writes what a script says; abacus's tokenizer has no tokens for
// calls, so they are spelled out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/http/http_client.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kCall[] =
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 5, \"b\": "
    "81}\n```"
    "<｜tool▁call▁end｜>";
constexpr char kEnd[] = "<｜tool▁calls▁end｜>";
constexpr char kSchema[] =
    R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}}})";

TestServerOptions Roomy() {
  TestServerOptions options;
  options.frontend.server.http_address = "127.0.0.1:0";
  options.scheduler.max_seq_len = 2048;
  options.scheduler.groups[0].block_count = 1 + 8 * 130;
  return options;
}

class ToolCallsTest : public testing::Test {
 protected:
  // The script of the request with this seed: `written` behind a thought, then EOS.
  void Write(uint64_t seed, const std::string& written) {
    std::vector<int32_t> ids =
        *server_.tokenizer().Encode("add them</think>" + written, {.parse_special = true, .add_bos = false});
    ids.push_back(server_.tokenizer().eos_id());
    server_.rank().SetScript(seed, ids);
  }
  static v1::GenerateRequest Request(uint64_t seed) {
    v1::GenerateRequest request;
    v1::Chat& chat = *request.mutable_chat();
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role("user");
    message.set_content("Compute 5+81.");
    v1::Tool& tool = *chat.add_tools();
    tool.set_name("add");
    tool.set_description("adds");
    tool.set_parameters(kSchema);
    request.mutable_sampling()->set_seed(seed);
    return request;
  }
  v1::GenerateResponse Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    const grpc::Status status = server_.stub().Generate(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  static json Body(uint64_t seed) {
    return {
        {"messages", {{{"role", "user"}, {"content", "Compute 5+81."}}}},
        {"tools",
         {{{"type", "function"},
           {"function", {{"name", "add"}, {"description", "adds"}, {"parameters", json::parse(kSchema)}}}}}},
        {"seed", seed},
        {"return_token_ids", true}};
  }
  HttpReply Post(const json& body) {
    return Ask(server_.listeners().http_port(), "POST", "/v1/chat/completions", body.dump());
  }
  json PostOk(const json& body) {
    const HttpReply reply = Post(body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? json::parse(reply.body)["choices"][0] : json();
  }

  TestServer server_{Roomy()};
};

// What openai-python makes of a stream: the calls' pieces joined by index.
struct StreamedAnswer {
  std::string text, thinking, finish_reason;
  std::vector<json> calls;
  std::vector<int32_t> token_ids;
  int call_events = 0;
};
StreamedAnswer Join(const std::vector<std::string>& events) {
  StreamedAnswer answer;
  for (const std::string& event : events) {
    if (event == "[DONE]") break;
    const json parsed = json::parse(event);
    const json& choice = parsed["choices"][0];
    const json& delta = choice["delta"];
    answer.text += delta.value("content", "");
    answer.thinking += delta.value("reasoning_content", "");
    for (const json& id : choice["token_ids"]) answer.token_ids.push_back(id);
    if (choice["finish_reason"].is_string()) answer.finish_reason = choice["finish_reason"];
    if (!delta.contains("tool_calls")) continue;
    ++answer.call_events;
    for (const json& call : delta["tool_calls"]) {
      const size_t index = call["index"];
      if (index == answer.calls.size()) {
        answer.calls.push_back({{"id", call["id"]}, {"type", call["type"]}, {"function", call["function"]}});
      } else {
        const std::string arguments = answer.calls.at(index)["function"]["arguments"];
        answer.calls[index]["function"]["arguments"] =
            arguments + call["function"]["arguments"].get<std::string>();
      }
    }
  }
  return answer;
}

TEST_F(ToolCallsTest, ACallArrivesOnBothWires) {
  Write(1, std::string("\n\nHm. ") + kCall + kEnd);
  const v1::GenerateResponse whole = Generate(Request(1));
  EXPECT_EQ(whole.thinking(), "add them");
  EXPECT_EQ(whole.text(), "\n\nHm. ");
  EXPECT_EQ(whole.finish_reason(), "tool_calls");
  ASSERT_EQ(whole.tool_calls_size(), 1);
  EXPECT_EQ(whole.tool_calls(0).name(), "add");
  EXPECT_EQ(whole.tool_calls(0).arguments(), R"({"a": 5, "b": 81})");
  EXPECT_THAT(whole.tool_calls(0).id(), testing::MatchesRegex("call_[0-9a-f]{16}_0"));
  ExpectConsistentAccounting(whole.usage(), whole.speculation());
  EXPECT_EQ(whole.usage().completion_tokens(), whole.token_ids_size());

  const StreamResult stream = ReadStream(server_.stub(), Request(1));
  ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
  EXPECT_EQ(stream.text(), whole.text());
  EXPECT_EQ(stream.token_ids(), std::vector<int32_t>(whole.token_ids().begin(), whole.token_ids().end()));
  EXPECT_EQ(stream.last().finish_reason(), "tool_calls");
  std::string thinking;
  std::vector<v1::ToolCall> calls;
  for (const v1::GenerateChunk& chunk : stream.chunks) {
    thinking += chunk.thinking();
    calls.insert(calls.end(), chunk.tool_calls().begin(), chunk.tool_calls().end());
  }
  EXPECT_EQ(thinking, whole.thinking());
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].arguments(), whole.tool_calls(0).arguments());

  const json choice = PostOk(Body(1));
  const json& message = choice["message"];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(message["content"], whole.text());
  EXPECT_EQ(message["reasoning_content"], whole.thinking());
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_EQ(message["tool_calls"][0]["function"],
            (json{{"name", "add"}, {"arguments", R"({"a": 5, "b": 81})"}}));
  EXPECT_EQ(choice["token_ids"].size(), static_cast<size_t>(whole.token_ids_size()));

  json body = Body(1);
  body["stream"] = true;
  const StreamedAnswer streamed = Join(EventsOf(Post(body).body));
  EXPECT_EQ(streamed.text, whole.text());
  EXPECT_EQ(streamed.thinking, whole.thinking());
  EXPECT_EQ(streamed.finish_reason, "tool_calls");
  EXPECT_EQ(streamed.token_ids, stream.token_ids());
  ASSERT_EQ(streamed.calls.size(), 1u);
  EXPECT_EQ(streamed.calls[0]["function"], message["tool_calls"][0]["function"]);
  EXPECT_EQ(server_.Metric("tool_calls_total", {{"result", "complete"}}), 4);
}

// A slow rank: each step is an event.
TEST(ToolCallStreams, ArgumentsComePieceByPiece) {
  TestServerOptions options = Roomy();
  options.rank.step_time = std::chrono::milliseconds(2);
  TestServer server(options);
  std::vector<int32_t> ids = *server.tokenizer().Encode("</think>" + std::string(kCall) + kEnd,
                                                        {.parse_special = true, .add_bos = false});
  ids.push_back(server.tokenizer().eos_id());
  server.rank().SetScript(1, ids);
  json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
               {"tools", {{{"type", "function"}, {"function", {{"name", "add"}}}}}},
               {"seed", 1},
               {"stream", true},
               {"return_token_ids", true},
               {"max_draft_tokens", 0}};
  const StreamedAnswer answer =
      Join(EventsOf(Ask(server.listeners().http_port(), "POST", "/v1/chat/completions", body.dump()).body));
  ASSERT_EQ(answer.calls.size(), 1u);
  EXPECT_EQ(answer.calls[0]["function"]["arguments"], R"({"a": 5, "b": 81})");
  EXPECT_GT(answer.call_events, 3);
}

TEST_F(ToolCallsTest, TheAnswerToResultsIsPartOfTheConversation) {
  v1::TokenizeRequest request;
  *request.mutable_chat() = Request(1).chat();
  v1::ChatMessage& answer = *request.mutable_chat()->add_messages();
  answer.set_role("assistant");
  v1::ToolCall& call = *answer.add_tool_calls();
  call.set_id("c1");
  call.set_name("add");
  call.set_arguments(R"({"a":5,"b":81})");
  v1::ChatMessage& result = *request.mutable_chat()->add_messages();
  result.set_chat_role(v1::CHAT_ROLE_TOOL);
  result.set_tool_call_id("c1");
  result.set_content("86");
  grpc::ClientContext context;
  v1::TokenizeResponse tokens;
  const grpc::Status status = server_.stub().Tokenize(&context, request, &tokens);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const std::string prompt = server_.tokenizer().Decode(
      std::vector<int32_t>(tokens.token_ids().begin(), tokens.token_ids().end()), /*skip_special=*/false);
  EXPECT_THAT(prompt, testing::EndsWith(
                          "add\n```json\n{\"a\": 5, \"b\": 81}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
                          "<｜end▁of▁sentence｜><｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>86"
                          "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"));
  // The same conversation over HTTP has the same prompt.
  json body = Body(1);
  body["messages"].push_back({{"role", "assistant"},
                              {"content", nullptr},
                              {"tool_calls",
                               {{{"id", "c1"},
                                 {"type", "function"},
                                 {"function", {{"name", "add"}, {"arguments", R"({"a":5,"b":81})"}}}}}}});
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "86"}});
  body["max_tokens"] = 4;
  const HttpReply reply = Post(body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(json::parse(reply.body)["usage"]["prompt_tokens"], tokens.token_ids_size());
}

TEST_F(ToolCallsTest, OneCallWhereParallelOnesAreOff) {
  Write(2, std::string(kCall) + "\n" +
               std::string(kCall).substr(std::string("<｜tool▁calls▁begin｜>").size()) + kEnd);
  v1::GenerateRequest request = Request(2);
  EXPECT_EQ(Generate(request).tool_calls_size(), 2);
  request.mutable_chat()->set_parallel_tool_calls(false);
  const v1::GenerateResponse one = Generate(request);
  EXPECT_EQ(one.tool_calls_size(), 1);
  EXPECT_EQ(one.finish_reason(), "tool_calls");
  ExpectConsistentAccounting(one.usage(), one.speculation());
  EXPECT_TRUE(server_.Eventually([&] { return server_.IsIdle(); }));
}

TEST_F(ToolCallsTest, CallsThatEndEarlySaySo) {
  Write(3, std::string(kCall) + kEnd);
  v1::GenerateRequest request = Request(3);
  request.add_stop("81");
  const v1::GenerateResponse stopped = Generate(request);
  EXPECT_EQ(stopped.finish_reason(), "stop");
  EXPECT_EQ(stopped.matched_stop(), "81");
  ASSERT_EQ(stopped.tool_calls_size(), 1);
  EXPECT_EQ(stopped.tool_calls(0).arguments(), R"({"a": 5, "b":)");
  json body = Body(3);
  body["stop"] = "81";
  const json choice = PostOk(body);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"a": 5, "b":)");
  // A stream has what was open in its last chunk.
  const StreamResult stream = ReadStream(server_.stub(), request);
  ASSERT_EQ(stream.last().tool_calls_size(), 1);
  EXPECT_EQ(stream.last().tool_calls(0).arguments(), R"({"a": 5, "b":)");
}

TEST_F(ToolCallsTest, WithoutToolsOrWithNoneACallIsText) {
  Write(4, std::string(kCall) + kEnd);
  v1::GenerateRequest request = Request(4);
  request.mutable_chat()->set_tool_choice("none");
  const v1::GenerateResponse none = Generate(request);
  EXPECT_EQ(none.tool_calls_size(), 0);
  EXPECT_EQ(none.text(), std::string(kCall) + kEnd);
  EXPECT_EQ(none.finish_reason(), "stop");
  request.mutable_chat()->clear_tools();
  EXPECT_EQ(Generate(request).text(), none.text());
  EXPECT_EQ(server_.Metric("tool_calls_total", {{"result", "text"}}), 0);
}

TEST_F(ToolCallsTest, RawTextIsAllThatTheModelWrote) {
  Write(5, std::string("x") + kCall + kEnd);
  v1::GenerateRequest request = Request(5);
  request.set_raw_text(true);
  const v1::GenerateResponse raw = Generate(request);
  EXPECT_EQ(raw.text(), std::string("add them</think>x") + kCall + kEnd);
  EXPECT_EQ(raw.thinking(), "");
  EXPECT_EQ(raw.tool_calls_size(), 0);
  EXPECT_EQ(raw.finish_reason(), "stop");
  request.set_raw_text(false);
  const v1::GenerateResponse apart = Generate(request);
  EXPECT_EQ(std::vector<int32_t>(raw.token_ids().begin(), raw.token_ids().end()),
            std::vector<int32_t>(apart.token_ids().begin(), apart.token_ids().end()));
}

TEST_F(ToolCallsTest, ForcedCallsAndStrictToolsAreTakenOnBothWires) {
  Write(6, std::string(kCall) + kEnd);
  for (const json& choice : {json("required"), json{{"type", "function"}, {"function", {{"name", "add"}}}}}) {
    json body = Body(6);
    body["tool_choice"] = choice;
    EXPECT_EQ(PostOk(body)["finish_reason"], "tool_calls");
  }
  json body = Body(6);
  body["tools"][0]["function"]["strict"] = true;
  EXPECT_EQ(PostOk(body)["finish_reason"], "tool_calls");
  v1::GenerateRequest request = Request(6);
  request.mutable_chat()->set_tool_choice("function:add");
  request.mutable_chat()->mutable_tools(0)->set_strict(true);
  EXPECT_EQ(Generate(request).finish_reason(), "tool_calls");
  body = Body(6);
  body["tool_choice"] = {
      {"type", "allowed_tools"},
      {"allowed_tools",
       {{"mode", "auto"}, {"tools", {{{"type", "function"}, {"function", {{"name", "add"}}}}}}}}};
  EXPECT_EQ(PostOk(body)["finish_reason"], "tool_calls");
  request = Request(6);
  request.mutable_chat()->add_allowed_tools("add");
  EXPECT_EQ(Generate(request).finish_reason(), "tool_calls");
  EXPECT_EQ(server_.Metric("constrained_requests_total", {{"kind", "tools"}}), 6);
}

TEST_F(ToolCallsTest, ForcedCallsAreRefusedByName) {
  struct Case {
    const char* field;
    json value;
    const char* param;
    const char* says;
  };
  const Case cases[] = {
      {"tool_choice",
       {{"type", "function"}, {"function", {{"name", "sub"}}}},
       "tool_choice.function.name",
       "tool_choice.function.name: \"sub\", allowed a name in tools"},
      {"ignore_eos", true, "ignore_eos", "ignore_eos: true, allowed false with forced calls"},
      {"min_tokens", 3, "min_tokens", "min_tokens: 3, allowed 0 with forced calls"}};
  for (const Case& test : cases) {
    json body = Body(6);
    body["tool_choice"] = "required";
    body[test.field] = test.value;
    const HttpReply reply = Post(body);
    EXPECT_EQ(reply.status, 400);
    const json error = json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], test.param);
    EXPECT_EQ(error["message"], test.says);
  }
  json body = Body(6);
  body["tools"][0]["function"].update(
      {{"strict", true}, {"parameters", {{"type", "object"}, {"not", {{"format", "date"}}}}}});
  EXPECT_THAT(Post(body).body, HasSubstr("\"tools[0].parameters: #/not: not supported"));
}

TEST_F(ToolCallsTest, GetModelSaysThatChatTakesTools) {
  grpc::ClientContext context;
  v1::GetModelResponse model;
  ASSERT_TRUE(server_.stub().GetModel(&context, {}, &model).ok());
  EXPECT_TRUE(model.tools());
}

}  // namespace
}  // namespace foredraft
