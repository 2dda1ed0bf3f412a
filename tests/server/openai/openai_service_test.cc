// OpenAI's API over a real port, beside gRPC on the same server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/http/http_client.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kCompletion[] = "/v1/completions";

TestServerOptions WithHttp() {
  TestServerOptions options;
  options.frontend.server.http_address = "127.0.0.1:0";
  return options;
}

// The request of SimpleRequest.
json SimpleBody(uint64_t seed, int max_tokens) {
  return {{"prompt", {5, 6, 7}}, {"seed", seed}, {"max_tokens", max_tokens}, {"return_token_ids", true}};
}

class OpenAiServiceTest : public testing::Test {
 protected:
  explicit OpenAiServiceTest(const TestServerOptions& options = WithHttp()) : server_(options) {}

  int port() { return server_.listeners().http_port(); }
  HttpReply Post(const std::string& path, const json& body, const std::vector<std::string>& headers = {}) {
    return Ask(port(), "POST", path, body.dump(), headers);
  }
  json PostOk(const std::string& path, const json& body) {
    const HttpReply reply = Post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? json::parse(reply.body) : json();
  }
  // The events of a stream that ends as it should.
  std::vector<json> Stream(const std::string& path, json body) {
    body["stream"] = true;
    const HttpReply reply = Post(path, body);
    EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream") << reply.body;
    std::vector<std::string> events = EventsOf(reply.body);
    EXPECT_EQ(events.back(), "[DONE]");
    events.pop_back();
    std::vector<json> parsed;
    for (const std::string& event : events) parsed.push_back(json::parse(event));
    return parsed;
  }

  TestServer server_;
};

TEST_F(OpenAiServiceTest, GivesTheTokensThatGrpcGives) {
  for (const uint64_t seed : {1, 7, 99}) {
    grpc::ClientContext context;
    v1::GenerateResponse grpc;
    ASSERT_TRUE(server_.stub().Generate(&context, SimpleRequest(seed, 40), &grpc).ok());
    const json whole = PostOk(kCompletion, SimpleBody(seed, 40));
    const json& choice = whole["choices"][0];
    EXPECT_EQ(choice["token_ids"].get<std::vector<int32_t>>(),
              std::vector<int32_t>(grpc.token_ids().begin(), grpc.token_ids().end()));
    EXPECT_EQ(choice["text"], grpc.text());
    EXPECT_EQ(choice["seed"], seed);
    EXPECT_EQ(choice["finish_reason"], grpc.finish_reason());
    const json& usage = whole["usage"];
    EXPECT_EQ(usage["prompt_tokens"], 3);
    EXPECT_EQ(usage["completion_tokens"], grpc.usage().completion_tokens());
    EXPECT_EQ(usage["completion_tokens_details"]["accepted_prediction_tokens"],
              grpc.speculation().accepted_tokens());
    EXPECT_EQ(usage["completion_tokens_details"]["rejected_prediction_tokens"],
              grpc.speculation().draft_tokens() - grpc.speculation().accepted_tokens());
    std::string text;
    std::vector<int32_t> ids;
    json body = SimpleBody(seed, 40);
    body["stream_options"] = {{"include_usage", true}};
    const std::vector<json> events = Stream(kCompletion, body);
    for (const json& event : events) {
      if (event["choices"].empty()) continue;
      text += event["choices"][0]["text"];
      for (const json& id : event["choices"][0]["token_ids"]) ids.push_back(id);
    }
    EXPECT_EQ(text, grpc.text());
    EXPECT_EQ(ids, std::vector<int32_t>(grpc.token_ids().begin(), grpc.token_ids().end()));
    EXPECT_EQ(events.back()["usage"], usage);
  }
  EXPECT_TRUE(server_.Eventually([&] { return server_.IsIdle(); }));
}

TEST_F(OpenAiServiceTest, AChatIsGrpcsChatWithItsThinkingApart) {
  v1::GenerateRequest grpc_request;
  auto* message = grpc_request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("Compute 5+81.");
  grpc_request.mutable_sampling()->set_seed(3);
  grpc_request.set_max_tokens(60);
  grpc::ClientContext context;
  v1::GenerateResponse grpc;
  ASSERT_TRUE(server_.stub().Generate(&context, grpc_request, &grpc).ok());
  const json body = {{"model", "scripted"},
                     {"messages", {{{"role", "user"}, {"content", "Compute 5+81."}}}},
                     {"seed", 3},
                     {"max_completion_tokens", 60}};
  const json answer = PostOk(kChat, body)["choices"][0]["message"];
  const std::string thinking = answer["reasoning_content"].is_null() ? "" : answer["reasoning_content"];
  const std::string content = answer["content"];
  EXPECT_EQ(thinking, grpc.thinking());
  EXPECT_EQ(content, grpc.text());
  std::string streamed_thinking, streamed_content;
  for (const json& event : Stream(kChat, body)) {
    const json& delta = event["choices"][0]["delta"];
    streamed_thinking += delta.value("reasoning_content", "");
    streamed_content += delta.value("content", "");
  }
  EXPECT_EQ(streamed_thinking, thinking);
  EXPECT_EQ(streamed_content, content);
}

TEST_F(OpenAiServiceTest, ChoiceIHasSeedPlusI) {
  json body = SimpleBody(20, 12);
  body["n"] = 3;
  body["prompt"] = {{5, 6, 7}, {8, 9}};
  const json whole = PostOk(kCompletion, body);
  ASSERT_EQ(whole["choices"].size(), 6u);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 72);
  for (int i = 0; i < 3; ++i) {
    const json alone = PostOk(kCompletion, SimpleBody(20 + i, 12));
    EXPECT_EQ(whole["choices"][i]["token_ids"], alone["choices"][0]["token_ids"]) << i;
  }
  std::vector<json> streamed(6, json::array());
  for (const json& event : Stream(kCompletion, body)) {
    const json& choice = event["choices"][0];
    for (const json& id : choice["token_ids"]) streamed[choice["index"].get<size_t>()].push_back(id);
  }
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(streamed[i], whole["choices"][i]["token_ids"]) << i;
}

TEST_F(OpenAiServiceTest, LogprobsComeInBothShapes) {
  json body = SimpleBody(4, 6);
  body["logprobs"] = 2;
  const json completion = PostOk(kCompletion, body)["choices"][0]["logprobs"];
  EXPECT_EQ(completion["tokens"].size(), 6u);
  EXPECT_EQ(completion["top_logprobs"].size(), 6u);
  const json chat = PostOk(kChat, {{"messages", {{{"role", "user"}, {"content", "1"}}}},
                                   {"max_tokens", 6},
                                   {"ignore_eos", true},
                                   {"logprobs", true},
                                   {"top_logprobs", 2}})["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(chat.size(), 6u);
  EXPECT_EQ(chat[0]["top_logprobs"].size(), 2u);
}

TEST_F(OpenAiServiceTest, AStopStringEndsTheAnswer) {
  const std::string text = PostOk(kCompletion, SimpleBody(5, 40))["choices"][0]["text"];
  ASSERT_GT(text.size(), 12u);
  json body = SimpleBody(5, 40);
  body["stop"] = text.substr(8, 3);
  const json choice = PostOk(kCompletion, body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], body["stop"]);
  EXPECT_EQ(choice["text"], text.substr(0, text.find(body["stop"].get<std::string>())));
}

TEST_F(OpenAiServiceTest, RefusalsAreJsonWithTheirStatus) {
  const struct {
    std::string path;
    std::string body;
    int status;
    std::string text;
  } cases[] = {
      {kCompletion, R"({"prompt": [5], "top_p": 2})", 400, "top_p: 2"},
      {kChat, R"({"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 0})", 400,
       "max_completion_tokens: 0"},
      {kCompletion, R"({"prompt": [5], "max_tokens": -2})", 400, "max_tokens"},
      {kCompletion, R"({"prompt": ""})", 400, "empty"},
      {kCompletion, R"({"prompt": [5], "model": "gpt-4"})", 404, "allowed scripted"},
      {kChat, R"({"messages": []})", 400, "messages"},
      {kChat, "{", 400, "not JSON"},
      {"/v1/embeddings", "{}", 404, "/v1/chat/completions"},
  };
  for (const auto& [path, body, status, text] : cases) {
    const HttpReply reply = Ask(port(), "POST", path, body);
    EXPECT_EQ(reply.status, status) << body;
    EXPECT_THAT(json::parse(reply.body)["error"]["message"].get<std::string>(), HasSubstr(text)) << body;
  }
  // A chat's logprobs is a bool, and top_logprobs what the server calls logprobs.
  for (const std::string field : {"logprobs", "top_logprobs"}) {
    const json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"logprobs", true}};
    json wrong = body;
    wrong[field] = 500;
    const HttpReply reply = Ask(port(), "POST", kChat, wrong.dump());
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], field) << reply.body;
  }
  EXPECT_EQ(Ask(port(), "GET", kChat).status, 405);
  HttpClient form(port());
  form.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: "
      "2\r\n\r\n{}");
  EXPECT_EQ(form.Read().status, 415);
  // All but the two that are no request, of /v1/embeddings and with GET.
  EXPECT_EQ(server_.Metric("requests_total", {{"outcome", "invalid"}}), 10);
  EXPECT_EQ(server_.Metric("requests_total", {{"outcome", "rejected"}}), 0);
}

TEST_F(OpenAiServiceTest, TakesJsonAsItIsAlone) {
  const std::string body = SimpleBody(1, 2).dump();
  const auto status = [&](const std::string& headers) {
    HttpClient client(port());
    client.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ",
                             body.size(), "\r\n", headers, "\r\n", body));
    return client.Read();
  };
  for (const char* type : {"application/json", "Application/JSON ; charset=utf-8", "application/json;"}) {
    EXPECT_EQ(status(absl::StrCat("Content-Type: ", type, "\r\n")).status, 200) << type;
  }
  for (const char* type :
       {"text/plain", "application/jsonx", "application/json, text/plain", ";application/json"}) {
    const HttpReply reply = status(absl::StrCat("Content-Type: ", type, "\r\n"));
    EXPECT_EQ(reply.status, 415) << type;
    EXPECT_THAT(reply.body, HasSubstr("allowed application/json"));
  }
  EXPECT_EQ(status("").status, 415);
  const std::string json_type = "Content-Type: application/json\r\nContent-Encoding: ";
  EXPECT_EQ(status(json_type + "identity\r\n").status, 200);
  for (const char* coding : {"br", "gzip, deflate", "identity, gzip", "gzip\r\nContent-Encoding: gzip"}) {
    const HttpReply reply = status(absl::StrCat(json_type, coding, "\r\n"));
    EXPECT_EQ(reply.status, 415) << coding;
    EXPECT_EQ(reply.headers.at("accept-encoding"), "gzip, deflate");
    EXPECT_THAT(reply.body, HasSubstr("Content-Encoding: "));
  }
  EXPECT_THAT(status(json_type + "gzip\r\n").body, HasSubstr("invalid_request_error")) << "it is not";
  for (const bool gzip : {true, false}) {
    const std::vector<std::string> coding = {gzip ? "Content-Encoding: gzip" : "Content-Encoding: deflate"};
    const HttpReply reply = Ask(port(), "POST", kCompletion, Compressed(body, gzip), coding);
    EXPECT_EQ(json::parse(reply.body)["choices"][0]["token_ids"],
              PostOk(kCompletion, SimpleBody(1, 2))["choices"][0]["token_ids"]);
    const std::string cut = Compressed(body, gzip).substr(0, 20);
    EXPECT_EQ(Ask(port(), "POST", kCompletion, cut, coding).status, 400);
  }
  const HttpReply marked = Ask(port(), "POST", kCompletion, "\xef\xbb\xbf" + body);
  EXPECT_EQ(marked.status, 400);
  EXPECT_THAT(marked.body, HasSubstr("byte order mark"));
}

TEST_F(OpenAiServiceTest, RoutesATargetInTheAbsoluteForm) {
  HttpClient client(port());
  client.Send("GET http://127.0.0.1:8000/health?x HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(OpenAiServiceTest, AStreamGoesOnForAClientThatHasEndedItsSide) {
  json body = SimpleBody(1, 200);
  body["stream"] = true;
  HttpClient client(port());
  client.Send(HttpText("POST", kCompletion, body.dump()));
  client.EndSending();
  EXPECT_EQ(EventsOf(client.Read().body).back(), "[DONE]");
  HttpClient whole(port());
  whole.Send(HttpText("POST", kCompletion, SimpleBody(1, 200).dump()));
  whole.EndSending();
  EXPECT_EQ(json::parse(whole.Read().body)["usage"]["completion_tokens"], 200);
}

TEST_F(OpenAiServiceTest, ModelsAndHealth) {
  EXPECT_EQ(json::parse(Ask(port(), "GET", "/v1/models").body)["data"][0]["id"], "scripted");
  EXPECT_EQ(json::parse(Ask(port(), "GET", "/v1/models/scripted").body)["object"], "model");
  EXPECT_EQ(Ask(port(), "GET", "/v1/models/other").status, 404);
  EXPECT_EQ(Ask(port(), "GET", "/health").status, 200);
  server_.frontend().BeginDrain();
  EXPECT_EQ(Ask(port(), "GET", "/health").status, 503);
  const HttpReply refused = Post(kCompletion, SimpleBody(1, 2));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(server_.Metric("requests_total", {{"outcome", "unavailable"}}), 1);
}

TEST_F(OpenAiServiceTest, TheIdIsTheClientsOrANewOne) {
  const HttpReply named = Post(kCompletion, SimpleBody(1, 2), {"X-Request-Id: mine-7"});
  EXPECT_EQ(named.headers.at("x-request-id"), "mine-7");
  // The longest id that a client may send also names the choices of a request, whose ids have a suffix.
  for (const size_t bytes : {126, 127, 128, 129}) {
    json body = SimpleBody(1, 2);
    body["n"] = 12;
    const HttpReply long_id = Post(kCompletion, body, {"X-Request-Id: " + std::string(bytes, 'i')});
    EXPECT_EQ(long_id.status, bytes <= 128 ? 200 : 400) << bytes << long_id.body;
    if (bytes <= 128) continue;
    EXPECT_THAT(long_id.body, HasSubstr("request_id: 129 bytes, allowed at most 128"));
  }
  EXPECT_EQ(json::parse(named.body)["id"], "cmpl-mine-7");
  EXPECT_THAT(Post(kCompletion, SimpleBody(1, 2)).headers.at("x-request-id"), HasSubstr("r-"));
}

TEST_F(OpenAiServiceTest, AnAnswerNamesItsPlaceInTheClientsTrace) {
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  json streamed = SimpleBody(1, 2);
  streamed["stream"] = true;
  for (const json& body : {SimpleBody(1, 2), streamed, json::object()}) {
    const HttpReply reply =
        Post(kCompletion, body, {absl::StrCat("traceparent: 00-", trace, "-00f067aa0ba902b7-00")});
    EXPECT_THAT(reply.headers.at("traceparent"),
                testing::MatchesRegex(absl::StrCat("00-", trace, "-[0-9a-f]{16}-00")))
        << body.dump();
  }
  EXPECT_FALSE(Post(kCompletion, SimpleBody(1, 2)).headers.contains("traceparent"));
}

class SlowRankTest : public OpenAiServiceTest {
 protected:
  static TestServerOptions Slow() {
    TestServerOptions options = WithHttp();
    options.rank.step_time = std::chrono::milliseconds(5);
    return options;
  }
  SlowRankTest() : OpenAiServiceTest(Slow()) {}
};

TEST_F(SlowRankTest, ALostConnectionEndsItsRequestsWithinASecond) {
  for (const bool stream : {true, false}) {
    json body = SimpleBody(1, 400);
    body["stream"] = stream;
    body["n"] = 3;
    HttpClient client(port());
    ASSERT_TRUE(client.Send(HttpText("POST", kCompletion, body.dump())));
    ASSERT_TRUE(server_.Eventually([&] { return server_.Metric("requests_running") == 3; })) << stream;
    if (stream) {
      EXPECT_EQ(client.ReadHead().status, 200);
    }
    const auto start = steady_clock::now();
    client.Close();
    EXPECT_TRUE(server_.Eventually([&] { return server_.IsIdle(); }));
    EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(1)) << stream;
  }
  EXPECT_EQ(server_.Metric("requests_total", {{"outcome", "cancelled"}}), 6);
}

TEST_F(OpenAiServiceTest, AFullQueueIs429WithRetryAfter) {
  server_.rank().Hold();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8 + 64 + 8; ++i) {  // slots, queue, and more
    clients.push_back(std::make_unique<HttpClient>(port()));
    const json body = SimpleBody(static_cast<uint64_t>(i), 40);
    ASSERT_TRUE(clients.back()->Send(HttpText("POST", kCompletion, body.dump())));
  }
  ASSERT_TRUE(server_.Eventually([&] {
    return server_.Metric("requests_total", {{"outcome", "rejected"}}) >= 8;
  }));
  server_.rank().Release();
  int answered = 0;
  int refused = 0;
  for (auto& client : clients) {
    const HttpReply reply = client->Read();
    answered += reply.status == 200;
    if (reply.status == 200) continue;
    ++refused;
    EXPECT_EQ(reply.status, 429) << reply.body;
    EXPECT_EQ(reply.headers.at("retry-after"), "1");
    EXPECT_EQ(json::parse(reply.body)["error"]["code"], "queue_full");
  }
  EXPECT_GE(answered, 64);
  EXPECT_GE(refused, 8);
}

TEST_F(SlowRankTest, ADrainThatCutsARequestShortSaysSo) {
  HttpClient client(port());
  json body = SimpleBody(1, 400);
  ASSERT_TRUE(client.Send(HttpText("POST", kCompletion, body.dump())));
  ASSERT_TRUE(server_.Eventually([&] { return server_.Metric("requests_running") == 1; }));
  server_.frontend().Shutdown();
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.body, HasSubstr("draining"));
}

int ThreadCount() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

TEST_F(OpenAiServiceTest, ManyOpenStreamsTakeNoThreads) {
  TestServerOptions options = WithHttp();
  options.loop.max_queue_size = 1024;
  options.rank.step_time = std::chrono::milliseconds(2);
  TestServer server(options);
  Ask(server.listeners().http_port(), "POST", kCompletion, SimpleBody(1, 2).dump());
  const int threads = ThreadCount();
  std::vector<std::unique_ptr<HttpClient>> clients;
  json body = SimpleBody(1, 8);
  body["stream"] = true;
  for (int i = 0; i < 512; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.listeners().http_port()));
    ASSERT_TRUE(clients.back()->Send(HttpText("POST", kCompletion, body.dump())));
  }
  EXPECT_TRUE(server.Eventually([&] { return server.frontend().open_calls() > 400; }));
  EXPECT_LE(ThreadCount(), threads + 1);
  for (auto& client : clients) EXPECT_THAT(client->Read().body, HasSubstr("[DONE]"));
  EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
}

class TokenTest : public OpenAiServiceTest {
 protected:
  static TestServerOptions WithTokens() {
    TestServerOptions options = WithHttp();
    options.frontend.server.auth.tokens_file = testing::TempDir() + "/openai_tokens";
    options.frontend.server.cors_origins = {"https://chat.example"};
    std::ofstream(options.frontend.server.auth.tokens_file, std::ios::trunc)
        << TokenLine(Role::kApi, "alice", "s3cret") << "\n"
        << TokenLine(Role::kMetrics, "prometheus", "numbers") << "\n";
    return options;
  }
  TokenTest() : OpenAiServiceTest(WithTokens()) {}
};

TEST_F(TokenTest, AsksForATokenBeforeTheBody) {
  HttpClient stranger(port());
  stranger.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 9999\r\n\r\n{");
  const HttpReply refused = stranger.Read();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "invalid_api_key");
  const json body = SimpleBody(1, 2);
  EXPECT_EQ(Post(kCompletion, body, {"Authorization: Bearer wrong"}).status, 401);
  EXPECT_EQ(Post(kCompletion, body, {"Authorization: Bearer numbers"}).status, 403);
  EXPECT_EQ(Post(kCompletion, body, {"Authorization: Bearer s3cret"}).status, 200);
  EXPECT_EQ(Ask(port(), "GET", "/v1/models").status, 401);
  EXPECT_EQ(Ask(port(), "GET", "/health").status, 200);
  EXPECT_EQ(server_.Metric("requests_total", {{"outcome", "unauthorized"}}), 3);
  const auto refused_for = [this](const char* cause) {
    return server_.Metric("tokens_refused_total", {{"cause", cause}});
  };
  EXPECT_EQ(refused_for("missing"), 2);
  EXPECT_EQ(refused_for("unknown"), 1);
  EXPECT_EQ(refused_for("role"), 1);
  EXPECT_EQ(refused_for("malformed"), 0);
}

TEST_F(TokenTest, ABrowserMayAskForAnAllowedOrigin) {
  HttpClient client(port());
  client.Send(HttpText("OPTIONS", kChat, "",
                       {"Origin: https://chat.example", "Access-Control-Request-Method: POST"}));
  const HttpReply allowed = client.Read();
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.headers.at("access-control-allow-origin"), "https://chat.example");
  client.Send(HttpText("OPTIONS", kChat, "",
                       {"Origin: https://evil.example", "Access-Control-Request-Method: POST"}));
  EXPECT_EQ(client.Read().headers.count("access-control-allow-origin"), 0u);
  const HttpReply refused = Post(kCompletion, SimpleBody(1, 2), {"Origin: https://chat.example"});
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("access-control-allow-origin"), "https://chat.example");
}

TEST_F(TokenTest, StillLoadingIs503) {
  TestServerOptions options = WithTokens();
  options.serve = false;
  TestServer loading(options);
  const int port = loading.listeners().http_port();
  EXPECT_EQ(Ask(port, "GET", "/health").status, 503);
  const HttpReply reply =
      Ask(port, "POST", kCompletion, SimpleBody(1, 2).dump(), {"Authorization: Bearer s3cret"});
  EXPECT_EQ(reply.status, 503);
  EXPECT_THAT(reply.body, HasSubstr("loading"));
}

}  // namespace
}  // namespace foredraft
