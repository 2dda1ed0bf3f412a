// What strangers over HTTP, and pages in browsers, can do with the listeners of a daemon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/guess_delay.h"
#include "server/api/openai/openai_request.h"
#include "tests/server/http/http_client.h"
#include "tests/server/resident_memory.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr char kCompletion[] = "/v1/completions";
constexpr char kBody[] = R"({"prompt": [5, 6, 7], "max_tokens": 2})";
// What a page sends whose name an attacker points at 127.0.0.1: its origin is the listener's own.
constexpr char kRebound[] = "Origin: http://evil.example\r\nSec-Fetch-Site: same-origin\r\n";
constexpr char kForeign[] = "Origin: http://evil.example\r\n";

TestServerOptions WithHttp() {
  TestServerOptions options;
  options.frontend.server.http_address = "127.0.0.1:0";
  options.frontend.server.metrics_address = "127.0.0.1:0";
  return options;
}

HttpReply AskAs(int port, const std::string& path, const std::string& host, const std::string& more = "") {
  const bool posts = path == kCompletion;
  const std::string body = posts ? kBody : "";
  HttpClient client(port);
  client.Send(absl::StrCat(posts ? "POST " : "GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\n", more,
                           "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n",
                           body));
  return client.Read();
}

TEST(Browsers, GetNothingOfALocalDaemonWithoutTokensUnderAStrangeName) {
  TestServer server(WithHttp());
  const int port = server.listeners().http_port();
  for (const std::string path : {"/", "/v1/models", "/health", kCompletion, "/nothing"}) {
    const HttpReply refused = AskAs(port, path, "evil.example", kRebound);
    EXPECT_EQ(refused.status, 421) << path;
    EXPECT_THAT(refused.body, HasSubstr("server.http_hosts"));
    const HttpReply known = AskAs(port, path, absl::StrCat("localhost:", port));
    EXPECT_EQ(known.status, path == "/nothing" ? 404 : 200) << path;
    for (const HttpReply* reply : {&refused, &known}) {
      EXPECT_EQ(reply->headers.at("cross-origin-resource-policy"), "same-origin") << path;
      EXPECT_THAT(reply->headers.at("content-security-policy"), HasSubstr("default-src 'none'")) << path;
      EXPECT_THAT(reply->headers.at("content-security-policy"), HasSubstr("frame-ancestors 'none'")) << path;
      EXPECT_EQ(reply->headers.at("vary"), "Origin") << path;
    }
  }
  const int metrics = server.listeners().metrics_port();
  for (const char* path : {"/metrics", "/healthz", "/readyz"}) {
    EXPECT_EQ(AskAs(metrics, path, "evil.example").status, 421) << path;
    EXPECT_EQ(AskAs(metrics, path, "127.0.0.1:9464").status, 200) << path;
  }
}

TEST(Browsers, OfAnotherOriginGetNothingEvenWithoutAPreflight) {
  TestServer server(WithHttp());
  for (const std::string path : {"/", "/v1/models", "/health", kCompletion}) {
    const HttpReply foreign = AskAs(server.listeners().http_port(), path, "127.0.0.1", kForeign);
    EXPECT_EQ(foreign.status, 403) << path;
    EXPECT_THAT(foreign.body, HasSubstr("server.cors_origins"));
  }
  for (const char* path : {"/metrics", "/healthz", "/readyz"}) {
    EXPECT_EQ(AskAs(server.listeners().metrics_port(), path, "127.0.0.1", kForeign).status, 403) << path;
  }
}

TEST(Browsers, ReachADaemonUnderItsConfiguredName) {
  TestServerOptions options = WithHttp();
  options.frontend.server.http_hosts = {"box.example"};
  TestServer server(options);
  const int port = server.listeners().http_port();
  EXPECT_EQ(AskAs(port, kCompletion, "box.example:8443", "Origin: https://box.example:8443\r\n").status, 200);
  EXPECT_EQ(AskAs(server.listeners().metrics_port(), "/metrics", "box.example").status, 200);
}

TEST(Browsers, ReachADaemonThatAsksForTokensUnderAnyName) {
  TestServerOptions options = WithHttp();
  options.frontend.server.auth.tokens_file = testing::TempDir() + "/browsers_tokens";
  const auto write = [&options](bool has_metrics_role) {
    std::ofstream(options.frontend.server.auth.tokens_file, std::ios::trunc)
        << TokenLine(Role::kApi, "alice", "s3cret") << "\n"
        << (has_metrics_role ? TokenLine(Role::kMetrics, "prometheus", "numbers") + "\n" : "");
  };
  for (const bool has_metrics_role : {true, false}) {
    write(has_metrics_role);
    TestServer server(options);
    EXPECT_EQ(
        AskAs(server.listeners().http_port(), "/v1/models", "box", "Authorization: Bearer s3cret\r\n").status,
        200);
    // The page of metrics asks for one only where a token has that role.
    EXPECT_EQ(AskAs(server.listeners().metrics_port(), "/metrics", "box", "Authorization: Bearer numbers\r\n")
                  .status,
              has_metrics_role ? 200 : 421);
  }
}

int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) << 10;
  }
  return 0;
}

TEST(Strangers, GuessingIsSlowAndARightTokenIsNot) {
  TestServerOptions options = WithHttp();
  options.frontend.server.auth.tokens_file = testing::TempDir() + "/guess_tokens";
  std::ofstream(options.frontend.server.auth.tokens_file, std::ios::trunc)
      << TokenLine(Role::kApi, "alice", "s3cret") << "\n";
  TestServer server(options);
  const int port = server.listeners().http_port();
  const auto ask = [port](const std::string& token) {
    const auto begin = steady_clock::now();
    Ask(port, "GET", "/v1/models", "", {"Authorization: Bearer " + token});
    return steady_clock::now() - begin;
  };
  for (int i = 0; i < GuessDelay::kFreeGuesses; ++i)
    EXPECT_LT(ask(absl::StrCat("guess-", i)), GuessDelay::kDelay);
  EXPECT_GE(ask("guess"), GuessDelay::kDelay);
  EXPECT_LT(ask("s3cret"), GuessDelay::kDelay);
  const auto begin = steady_clock::now();
  EXPECT_EQ(Ask(port, "GET", "/v1/models").status, 401) << "no token is no guess";
  EXPECT_LT(steady_clock::now() - begin, GuessDelay::kDelay);
}

TEST(Strangers, ManyPromptsDoNotMultiplyTheRestOfABody) {
  TestServer server(WithHttp());
  const int port = server.listeners().http_port();
  const auto post = [port](const json& body) { return Ask(port, "POST", kCompletion, body.dump()); };
  constexpr size_t kBytes = size_t{4} << 20;
  json prompts = json::array();
  for (int i = 0; i < kMaxChoices; ++i) prompts.push_back(json::array({5, 6, 7}));
  json stops = json::array();
  for (int i = 0; i < 1000; ++i) stops.push_back(std::string(kBytes / 1000, 'a'));
  const struct {
    json field;
    std::string text;
  } cases[] = {
      {{{"guided_regex", std::string(kBytes, 'a')}}, "guided_regex: 4194304 bytes, allowed at most"},
      {{{"guided_choice", stops}}, "guided_choice: 4194000 bytes, allowed at most 65536"},
      {{{"stop", stops}}, "stop: 1,000 strings, allowed at most 16"},
      {{{"stop_token_ids", json(std::vector<int>(kBytes / 8, 7))}}, "stop_token_ids: 524,288 ids"},
      {{{"stop", std::string(kBytes, 'a')}}, "stop[0]: 4,194,304 bytes, allowed 1..256"},
  };
  post(cases[0].field);  // every thread has its memory pools
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
  const int64_t before = ResidentBytes();
  for (const auto& [field, text] : cases) {
    json body = field;
    body["prompt"] = prompts;
    const HttpReply reply = post(body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_THAT(json::parse(reply.body)["error"]["message"].get<std::string>(), HasSubstr(text));
  }
  // The test's own copies of the body and the server's few, not 128.
  EXPECT_LT(PeakResidentBytes() - before, int64_t{30} * kBytes + kQuarantineBytes);
}

}  // namespace
}  // namespace foredraft
