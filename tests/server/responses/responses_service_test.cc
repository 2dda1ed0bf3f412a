// OpenAI's Responses API over a real port.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/http/http_client.h"
#include "tests/server/http/scripted_answers.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;

constexpr char kResponses[] = "/v1/responses";
constexpr char kInputTokens[] = "/v1/responses/input_tokens";

json Body() {
  return {{"model", "scripted"}, {"max_output_tokens", 60}, {"seed", 3}, {"input", "Compute 5+81."}};
}

class ResponsesServiceTest : public testing::Test {
 protected:
  static TestServerOptions WithHttp() {
    TestServerOptions options;
    options.frontend.server.http_address = "127.0.0.1:0";
    return options;
  }
  ResponsesServiceTest() : server_(WithHttp()) {}

  HttpReply Post(const json& body, const std::string& path = kResponses) {
    return Ask(server_.listeners().http_port(), "POST", path, body.dump(), {"x-request-id: mine"});
  }

  TestServer server_;
};

TEST_F(ResponsesServiceTest, AnswersAsTheChatOfOpenAiDoes) {
  const json chat = json::parse(
      Post(
          {{"messages", {{{"role", "user"}, {"content", "Compute 5+81."}}}}, {"max_tokens", 60}, {"seed", 3}},
          "/v1/chat/completions")
          .body);
  const HttpReply reply = Post(Body());
  ASSERT_EQ(reply.status, 200) << reply.body;
  json response = json::parse(reply.body);
  EXPECT_EQ(response["id"], "resp_mine");
  EXPECT_EQ(response["max_output_tokens"], 60);
  EXPECT_EQ(response["seed"], 3);
  std::string thinking, text;
  for (const json& item : response["output"]) {
    (item["type"] == "reasoning" ? thinking : text) += item["content"][0]["text"].get<std::string>();
  }
  const json& message = chat["choices"][0]["message"];
  EXPECT_EQ(thinking, message["reasoning_content"].is_null() ? "" : message["reasoning_content"]);
  EXPECT_EQ(text, message["content"]);
  EXPECT_EQ(response["status"], chat["choices"][0]["finish_reason"] == "length" ? "incomplete" : "completed");
  EXPECT_EQ(response["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
  EXPECT_EQ(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  json streamed = Body();
  streamed["stream"] = true;
  json joined = JoinedResponse(SentEvents(Post(streamed).body));
  for (json* one : {&joined, &response}) {
    for (const char* time : {"created_at", "completed_at", "usage"}) one->erase(time);
  }
  EXPECT_EQ(joined, response);
  EXPECT_TRUE(server_.Eventually([&] { return server_.IsIdle(); }));
}

TEST_F(ResponsesServiceTest, CountsTheTokensOfThePrompt) {
  const json counted = json::parse(Post(Body(), kInputTokens).body);
  EXPECT_EQ(counted["object"], "response.input_tokens");
  EXPECT_EQ(counted["input_tokens"], json::parse(Post(Body()).body)["usage"]["input_tokens"]);
}

TEST_F(ResponsesServiceTest, ErrorsAreOpenAis) {
  json body = Body();
  body["previous_response_id"] = "resp_1";
  const HttpReply earlier = Post(body);
  EXPECT_EQ(earlier.status, 400);
  EXPECT_EQ(json::parse(earlier.body)["error"]["code"], "previous_response_not_found");
  body = Body();
  body["max_output_tokens"] = 0;
  const HttpReply none = Post(body);
  EXPECT_EQ(json::parse(none.body)["error"]["param"], "max_output_tokens");
  EXPECT_EQ(Ask(server_.listeners().http_port(), "GET", "/v1/responses/resp_1").status, 404);
}

// By its bytes before it is tokenized, and by its tokens.
TEST_F(ResponsesServiceTest, APromptThatIsTooLongFailsTheResponse) {
  for (const size_t bytes : {600, 30'000}) {
    json body = Body();
    body["input"] = std::string(bytes, '1');
    const HttpReply whole = Post(body);
    EXPECT_EQ(whole.status, 400);
    EXPECT_EQ(json::parse(whole.body)["error"]["code"], "context_length_exceeded");
    body["stream"] = true;
    const HttpReply stream = Post(body);
    EXPECT_EQ(stream.status, 200);
    EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream");
    const json response = JoinedResponse(SentEvents(stream.body));
    EXPECT_EQ(response["id"], "resp_mine");
    EXPECT_EQ(response["error"]["code"], "context_length_exceeded");
  }
}

}  // namespace
}  // namespace foredraft
