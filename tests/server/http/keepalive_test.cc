// Streams over HTTP that have nothing to send: each wire's way of saying that they are alive.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http/http_client.h"
#include "tests/server/http/scripted_answers.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kComment[] = ": keep-alive\n\n";

json Body() {
  return {{"messages", {{{"role", "user"}, {"content", "1 + 1 ="}}}},
          {"max_tokens", 8},
          {"seed", 5},
          {"stream", true}};
}

json ResponsesBody() {
  return {{"input", "1 + 1 ="}, {"max_output_tokens", 8}, {"seed", 5}, {"stream", true}};
}

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

class KeepaliveTest : public testing::Test {
 protected:
  static TestServerOptions Options(int keepalive_s) {
    TestServerOptions options;
    options.frontend.server.http_address = "127.0.0.1:0";
    options.frontend.server.stream_keepalive_s = keepalive_s;
    options.loop.max_queue_size = 128;
    return options;
  }
  explicit KeepaliveTest(int keepalive_s = 1) : server_(Options(keepalive_s)) {}

  std::unique_ptr<HttpClient> Begin(const std::string& path, const json& body) {
    auto client = std::make_unique<HttpClient>(server_.listeners().http_port());
    EXPECT_TRUE(client->Send(HttpText("POST", path, body.dump())));
    return client;
  }
  // The stream of a request whose first token comes after this long.
  std::string SilentFor(milliseconds time, const std::string& path, const json& body) {
    server_.rank().Hold();
    const auto client = Begin(path, body);
    std::this_thread::sleep_for(time);
    server_.rank().Release();
    const HttpReply reply = client->Read();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
    return reply.body;
  }
  std::string Stream(const std::string& path, const json& body) {
    return Ask(server_.listeners().http_port(), "POST", path, body.dump()).body;
  }

  TestServer server_;
};

TEST_F(KeepaliveTest, ChatAndCompletionsHaveComments) {
  EXPECT_EQ(CountOf(Stream(kChat, Body()), kComment), 0);
  const std::string stream = SilentFor(milliseconds(2500), kChat, Body());
  EXPECT_EQ(CountOf(stream, kComment), 2) << stream;
  EXPECT_THAT(stream, StartsWith(kComment));
  EXPECT_THAT(stream, HasSubstr("data: [DONE]"));
}

TEST_F(KeepaliveTest, ResponsesHaveEventsWithANumber) {
  const std::string stream = SilentFor(milliseconds(1500), "/v1/responses", ResponsesBody());
  const std::vector<SentEvent> events = SentEvents(stream);
  EXPECT_EQ(events[2].type, "keepalive");
  EXPECT_EQ(events[2].data, (nlohmann::ordered_json{{"type", "keepalive"}, {"sequence_number", 2}}));
  EXPECT_EQ(JoinedResponse(events)["status"],
            JoinedResponse(SentEvents(Stream("/v1/responses", ResponsesBody())))["status"]);
}

TEST_F(KeepaliveTest, MessagesArePinged) {
  const std::string stream = SilentFor(milliseconds(1500), "/v1/messages", Body());
  const std::vector<SentEvent> events = SentEvents(stream);
  EXPECT_EQ(events[0].type, "message_start");
  EXPECT_EQ(events[1].type, "ping");
  const nlohmann::ordered_json joined = JoinedMessage(events);
  const nlohmann::ordered_json other = JoinedMessage(SentEvents(Stream("/v1/messages", Body())));
  EXPECT_EQ(joined["content"][0]["thinking"], other["content"][0]["thinking"]);
  EXPECT_GT(joined["usage"]["output_tokens"], 0);
}

TEST_F(KeepaliveTest, AnErrorIsAnEventOfAStreamThatHasBegun) {
  const struct {
    const char* path;
    json body;
    const char* event;
  } wires[] = {{kChat, Body(), "data: {\"error\""},
               {"/v1/responses", ResponsesBody(), "event: response.failed"},
               {"/v1/messages", Body(), "event: error"}};
  server_.rank().Hold();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (const auto& [path, body, event] : wires) clients.push_back(Begin(path, body));
  for (const auto& client : clients) EXPECT_EQ(client->ReadHead().status, 200);  // before any token
  server_.rank().Lose();
  server_.rank().Release();
  for (size_t i = 0; i < clients.size(); ++i) {
    std::string stream, piece;
    while (!(piece = clients[i]->ReadSome()).empty() && stream.find("0\r\n\r\n") == std::string::npos) {
      stream += piece;
      if (stream.ends_with("0\r\n\r\n")) break;
    }
    EXPECT_THAT(stream, HasSubstr(wires[i].event)) << wires[i].path;
  }
}

TEST_F(KeepaliveTest, RefusalsAreStatuses) {
  server_.rank().Hold();
  json bad = Body();
  bad["temperature"] = -1;
  EXPECT_EQ(Ask(server_.listeners().http_port(), "POST", kChat, bad.dump()).status, 400);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8 + 128 + 8; ++i) clients.push_back(Begin(kChat, Body()));  // slots, queue, and more
  ASSERT_TRUE(server_.Eventually([&] {
    return server_.Metric("requests_total", {{"outcome", "rejected"}}) >= 8;
  }));
  std::this_thread::sleep_for(milliseconds(1200));
  server_.rank().Release();
  int refused = 0;
  for (const auto& client : clients) {
    const HttpReply reply = client->Read();
    refused += reply.status == 429;
    EXPECT_TRUE(reply.status == 429 || reply.status == 200) << reply.status;
    EXPECT_EQ(CountOf(reply.body, kComment) > 0, reply.status == 200);
  }
  EXPECT_GE(refused, 8);
}

// Each stream has one comment for every interval that it is silent, and no more, however many there are.
TEST_F(KeepaliveTest, ManyStreamsHaveOneEventEachAndInterval) {
  server_.rank().Hold();
  std::vector<std::unique_ptr<HttpClient>> clients;
  const auto start = steady_clock::now();
  for (int i = 0; i < 64; ++i) clients.push_back(Begin(kChat, Body()));
  std::this_thread::sleep_for(milliseconds(3500));
  server_.rank().Release();
  const auto held = steady_clock::now() - start;
  for (const auto& client : clients) {
    const int count = CountOf(client->Read().body, kComment);
    EXPECT_GE(count, 2);
    EXPECT_LE(count, held / std::chrono::seconds(1));
  }
  EXPECT_TRUE(server_.Eventually([&] { return server_.IsIdle(); }));
}

TEST_F(KeepaliveTest, AClientThatHasLeftIsForgotten) {
  server_.rank().Hold();
  auto client = Begin(kChat, Body());
  EXPECT_EQ(client->ReadHead().status, 200);
  client->Close();
  EXPECT_TRUE(server_.Eventually([&] { return server_.frontend().open_calls() == 0; }));
  server_.rank().Release();
  EXPECT_TRUE(server_.Eventually([&] { return server_.IsIdle(); }));
}

class NoKeepaliveTest : public KeepaliveTest {
 protected:
  NoKeepaliveTest() : KeepaliveTest(0) {}
};

TEST_F(NoKeepaliveTest, ZeroIsNever) {
  EXPECT_EQ(CountOf(SilentFor(milliseconds(1500), kChat, Body()), kComment), 0);
}

}  // namespace
}  // namespace foredraft
