// What becomes of fields without effect, from the body of a request to the header, the log and the metric.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/log.h"
#include "server/text/field_notes.h"
#include "tests/server/http/http_client.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;

constexpr char kCompletion[] = "/v1/completions";

class UnknownFieldsTest : public testing::Test {
 protected:
  static TestServerOptions Options() {
    TestServerOptions options;
    options.frontend.server.http_address = "127.0.0.1:0";
    return options;
  }
  UnknownFieldsTest() : server_(Options()) {}

  HttpReply Post(const json& more, const std::vector<std::string>& headers = {}) {
    json body = {{"prompt", {5, 6, 7}}, {"max_tokens", 4}, {"seed", 1}, {"return_token_ids", true}};
    body.update(more);
    return Ask(server_.listeners().http_port(), "POST", kCompletion, body.dump(), headers);
  }
  static std::string Ignored(const HttpReply& reply) {
    const auto found = reply.headers.find(kIgnoredHeader);
    return found == reply.headers.end() ? "none" : found->second;
  }
  double Count(const char* kind) {
    return server_.Metric("ignored_fields_total", {{"wire", "completions"}, {"kind", kind}});
  }

  TestServer server_;
};

TEST_F(UnknownFieldsTest, AreNamedInAnswersOfEveryForm) {
  const HttpReply plain = Post(json::object());
  EXPECT_EQ(Ignored(plain), "none");
  const HttpReply noted = Post({{"foo", 1}, {"verbosity", "low"}});
  EXPECT_EQ(noted.status, 200);
  EXPECT_EQ(Ignored(noted), "foo, verbosity");
  EXPECT_EQ(json::parse(noted.body)["choices"][0]["token_ids"],
            json::parse(plain.body)["choices"][0]["token_ids"]);
  EXPECT_EQ(Ignored(Post({{"foo", 1}, {"stream", true}})), "foo");
  EXPECT_EQ(Ignored(Post({{"foo", 1}, {"n", 3}})), "foo");
  // What the reader, and what the validator refuses.
  const HttpReply unread = Post({{"foo", 1}, {"echo", true}});
  EXPECT_EQ(unread.status, 400);
  EXPECT_EQ(Ignored(unread), "foo");
  const HttpReply refused = Post({{"foo", 1}, {"temperature", -1}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Ignored(refused), "foo");
  // What the validator notes.
  EXPECT_EQ(Ignored(Post({{"foo", 1}, {"max_tokens", 100'000}})), "foo, max_tokens");
}

TEST_F(UnknownFieldsTest, AreCountedForEachRequest) {
  EXPECT_EQ(Count("unknown") + Count("dropped"), 0);
  Post({{"foo", 1}, {"bar", 1}, {"verbosity", "low"}});
  Post({{"foo", 1}, {"echo", true}});
  EXPECT_EQ(Count("unknown"), 3);
  EXPECT_EQ(Count("dropped"), 1);
}

TEST_F(UnknownFieldsTest, AreLoggedOnceAndInTheLineOfTheirRequest) {
  std::vector<std::string> lines;
  std::mutex mutex;
  InstallLogSink([&](LogLevel, std::string_view line, const LogFields&) {
    std::lock_guard<std::mutex> lock(mutex);
    lines.emplace_back(line);
  });
  testing::internal::CaptureStdout();  // where requests have their lines while no log is installed
  Post({{"foo", 1}});
  Post({{"foo", 2}});
  const bool is_idle = server_.Eventually([this] { return server_.IsIdle(); });
  const std::string requests = testing::internal::GetCapturedStdout();
  InstallLogSink({});
  ASSERT_TRUE(is_idle);
  EXPECT_EQ(std::count(lines.begin(), lines.end(),
                       "ignored in requests of completions: foo: no such field is known"),
            1);
  int noted = 0;
  for (size_t at = 0; (at = requests.find(", ignored 1 field\n", at)) != std::string::npos; ++at) ++noted;
  EXPECT_EQ(noted, 2) << requests;
}

TEST_F(UnknownFieldsTest, AreRefusedWhereTheConfigurationSaysSo) {
  server_.frontend().SetUnknownFields(UnknownFields::kRefuse);
  const HttpReply refused = Post({{"max_token", 1}});
  EXPECT_EQ(refused.status, 400);
  const json error = json::parse(refused.body)["error"];
  EXPECT_EQ(error["param"], "max_token");
  EXPECT_EQ(error["message"], "max_token: unknown, nearest is max_tokens");
  EXPECT_EQ(Post({{"verbosity", "low"}, {"user", "me"}}).status, 200);
  server_.frontend().SetUnknownFields(UnknownFields::kIgnore);
  EXPECT_EQ(Post({{"max_token", 1}}).status, 200);
}

TEST_F(UnknownFieldsTest, TheIdMayStandInTheBody) {
  EXPECT_EQ(Post({{"request_id", "from-body"}}).headers.at("x-request-id"), "from-body");
  EXPECT_EQ(Post({{"rid", "from-body"}}, {"x-request-id: from-head"}).headers.at("x-request-id"),
            "from-head");
}

TEST_F(UnknownFieldsTest, UsageMayStandInEveryChunk) {
  const HttpReply reply = Post(
      {{"stream", true}, {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  std::vector<std::string> events = EventsOf(reply.body);
  ASSERT_GT(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  int64_t last = 0;
  for (const std::string& event : events) {
    const json usage = json::parse(event)["usage"];
    EXPECT_EQ(usage["prompt_tokens"], 3) << event;
    EXPECT_GE(usage["completion_tokens"].get<int64_t>(), last);
    last = usage["completion_tokens"];
  }
  EXPECT_EQ(last, 4);
}

}  // namespace
}  // namespace foredraft
