// Anthropic's Messages API over a real port.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/access.h"
#include "tests/server/http/http_client.h"
#include "tests/server/http/scripted_answers.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;
using testing::HasSubstr;

constexpr char kMessages[] = "/v1/messages";
constexpr char kCountTokens[] = "/v1/messages/count_tokens";

TestServerOptions WithHttp() {
  TestServerOptions options;
  options.frontend.server.http_address = "127.0.0.1:0";
  return options;
}

json Body(uint64_t seed = 3) {
  return {{"model", "scripted"},
          {"max_tokens", 60},
          {"seed", seed},
          {"messages", {{{"role", "user"}, {"content", "Compute 5+81."}}}}};
}

class MessagesServiceTest : public testing::Test {
 protected:
  explicit MessagesServiceTest(const TestServerOptions& options = WithHttp()) : server_(options) {}

  HttpReply Post(const json& body, const std::string& path = kMessages,
                 const std::vector<std::string>& headers = {}) {
    return Ask(server_.listeners().http_port(), "POST", path, body.dump(), headers);
  }

  TestServer server_;
};

TEST_F(MessagesServiceTest, AnswersAsTheChatOfOpenAiDoes) {
  json chat_body = Body();
  const json chat = json::parse(Post(chat_body, "/v1/chat/completions").body);
  const HttpReply reply = Post(Body(), kMessages, {"anthropic-version: 2023-06-01", "x-request-id: mine"});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json message = json::parse(reply.body);
  EXPECT_EQ(message["id"], "msg_mine");
  EXPECT_EQ(reply.headers.at("request-id"), "mine");
  EXPECT_EQ(message["model"], "scripted");
  std::string thinking, text;
  for (const json& block : message["content"]) {
    thinking += block.value("thinking", "");
    text += block.value("text", "");
  }
  const json& choice = chat["choices"][0]["message"];
  EXPECT_EQ(thinking, choice["reasoning_content"].is_null() ? "" : choice["reasoning_content"]);
  EXPECT_EQ(text, choice["content"]);
  EXPECT_EQ(message["stop_reason"],
            chat["choices"][0]["finish_reason"] == "length" ? "max_tokens" : "end_turn");
  EXPECT_EQ(message["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
  json streamed = Body();
  streamed["stream"] = true;
  const HttpReply stream = Post(streamed, kMessages, {"x-request-id: mine"});
  EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream");
  json joined = JoinedMessage(SentEvents(stream.body));
  // The prompt is cached by now.
  for (json* answer : {&joined, const_cast<json*>(&message)}) {
    (*answer)["usage"].erase("input_tokens");
    (*answer)["usage"].erase("cache_read_input_tokens");
  }
  EXPECT_EQ(joined, message);
  EXPECT_TRUE(server_.Eventually([&] { return server_.IsIdle(); }));
}

TEST_F(MessagesServiceTest, CountsTheTokensOfThePrompt) {
  const HttpReply counted = Post(Body(), kCountTokens);
  ASSERT_EQ(counted.status, 200) << counted.body;
  const json usage = json::parse(Post(Body()).body)["usage"];
  EXPECT_EQ(json::parse(counted.body)["input_tokens"],
            usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>());
  EXPECT_FALSE(counted.headers.at("request-id").empty());
  // A long prompt is counted by another thread, and no slot is taken.
  json many = Body();
  many["messages"][0]["content"] = std::string(20'000, '1');
  many["unknown"] = 1;
  const HttpReply long_one = Post(many, kCountTokens);
  EXPECT_EQ(long_one.status, 200) << long_one.body;
  EXPECT_GT(json::parse(long_one.body)["input_tokens"], 10'000);
  EXPECT_EQ(long_one.headers.at("x-foredraft-ignored"), "unknown");
  EXPECT_EQ(Post({{"messages", json::array()}}, kCountTokens).status, 400);
  EXPECT_TRUE(server_.Eventually([&] { return server_.IsIdle(); }));
}

TEST_F(MessagesServiceTest, RefusalsHaveAnthropicsForm) {
  const struct {
    json more;
    int status;
    const char* type;
    const char* text;
  } cases[] = {{{{"model", "claude-x"}}, 404, "not_found_error", "model: \"claude-x\", allowed scripted"},
               {{{"stop_sequences", {""}}}, 400, "invalid_request_error", "stop_sequences[0]: empty"},
               {{{"temperature", -1}}, 400, "invalid_request_error", "temperature: -1"},
               {{{"max_tokens", 0}}, 400, "invalid_request_error", "max_tokens: 0, allowed at least 1"},
               {{{"messages", json::parse(R"([{"role": "user", "content": "a"}, {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "x"}]}])")}},
                400,
                "invalid_request_error",
                "messages[1]"}};
  for (const auto& [more, status, type, text] : cases) {
    json body = Body();
    body.update(more);
    const HttpReply reply = Post(body);
    EXPECT_EQ(reply.status, status) << reply.body;
    const json error = json::parse(reply.body);
    EXPECT_EQ(error["type"], "error");
    EXPECT_EQ(error["error"]["type"], type);
    EXPECT_THAT(error["error"]["message"].get<std::string>(), HasSubstr(text));
    EXPECT_EQ(error["request_id"], reply.headers.at("request-id"));
  }
  const HttpReply method = Ask(server_.listeners().http_port(), "GET", kMessages);
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(json::parse(method.body)["type"], "error");
}

TEST_F(MessagesServiceTest, AToolThatAMessageRemovesIsNotThereToBeChosen) {
  json body = Body();
  body["tools"] = {{{"name", "f"}}, {{"name", "g"}}};
  const json block =
      json::parse(R"({"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}})");
  const auto removal = [&block](const char* name) {
    json named = block;
    named["tool"]["name"] = name;
    return json{{"role", "system"}, {"content", {named}}};
  };
  const json whole = json::parse(Post(body, kCountTokens).body);
  body["messages"].push_back(removal("f"));
  const HttpReply counted = Post(body, kCountTokens);
  ASSERT_EQ(counted.status, 200) << counted.body;
  EXPECT_GT(json::parse(counted.body)["input_tokens"], whole["input_tokens"]) << "the head has f still";
  EXPECT_EQ(Post(body).status, 200);
  const auto text_of = [this, &body] {
    const HttpReply reply = Post(body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return json::parse(reply.body)["error"]["message"].get<std::string>();
  };
  body["tool_choice"] = {{"type", "tool"}, {"name", "f"}};
  EXPECT_EQ(
      text_of(),
      "tool_choice: \"function:f\", allowed with a tool that no message of the conversation has removed");
  body["tool_choice"]["name"] = "g";
  EXPECT_EQ(Post(body).status, 200);
  body["messages"].push_back(removal("g"));
  body["tool_choice"] = {{"type", "any"}};
  EXPECT_THAT(text_of(), HasSubstr("tool_choice: \"required\", allowed with a tool that no message"));
  body["messages"].push_back(removal("h"));
  EXPECT_EQ(text_of(),
            "messages[3].content: a removal of tool \"h\", allowed a name of tools or of a definition "
            "before it");
}

TEST_F(MessagesServiceTest, APromptThatIsTooLongIsToldInTheWordsThatClaudeCodeKnows) {
  json body = Body();
  body["messages"][0]["content"] = std::string(600, '1');
  const int tokens = json::parse(Post(body, kCountTokens).body)["input_tokens"];
  const HttpReply reply = Post(body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(json::parse(reply.body)["error"]["message"],
            absl::StrCat("prompt is too long: ", tokens, " tokens > 511 maximum"));
}

class MessagesKeyTest : public MessagesServiceTest {
 protected:
  static TestServerOptions WithToken() {
    TestServerOptions options = WithHttp();
    options.frontend.server.auth.tokens_file = testing::TempDir() + "/messages_tokens";
    std::ofstream(options.frontend.server.auth.tokens_file, std::ios::trunc)
        << TokenLine(Role::kApi, "alice", "secret") << "\n";
    return options;
  }
  MessagesKeyTest() : MessagesServiceTest(WithToken()) {}
};

TEST_F(MessagesKeyTest, TheKeyMayStandInAnthropicsHeader) {
  const HttpReply without = Post(Body());
  EXPECT_EQ(without.status, 401);
  EXPECT_EQ(json::parse(without.body)["error"]["type"], "authentication_error");
  EXPECT_EQ(Post(Body(), kMessages, {"x-api-key: secret"}).status, 200);
  EXPECT_EQ(Post(Body(), kCountTokens, {"x-api-key: secret"}).status, 200);
  EXPECT_EQ(Post(Body(), kMessages, {"Authorization: Bearer secret"}).status, 200);
  EXPECT_EQ(Post(Body(), kMessages, {"x-api-key: other"}).status, 401);
  // Authorization counts where there are both.
  EXPECT_EQ(Post(Body(), kMessages, {"x-api-key: secret", "Authorization: Bearer other"}).status, 401);
}

}  // namespace
}  // namespace foredraft
