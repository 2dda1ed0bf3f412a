#include "server/http/browser_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace foredraft {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

BrowserPolicy OfOrigins(std::vector<std::string> origins) {
  return BrowserPolicy({.origins = std::move(origins), .asks_for_known_host = nullptr, .hosts = {}});
}

// 0 where the request is let pass.
int StatusOf(const BrowserPolicy& policy, const std::string& host, const std::string& origin = "") {
  const auto refusal = policy.Refuse({.method = "POST", .headers = {{"host", host}, {"origin", origin}}});
  return refusal.has_value() ? refusal->status : 0;
}

TEST(BrowserPolicy, AnswersAllowedOriginsOnly) {
  const BrowserPolicy none = OfOrigins({});
  const BrowserPolicy one = OfOrigins({"https://chat.example"});
  const BrowserPolicy all = OfOrigins({"*"});
  EXPECT_THAT(none.HeadersFor("https://chat.example"), IsEmpty());
  EXPECT_THAT(one.HeadersFor("https://chat.example.evil"), IsEmpty());
  EXPECT_THAT(one.HeadersFor(""), IsEmpty());
  EXPECT_EQ(one.HeadersFor("https://chat.example").front().second, "https://chat.example");
  EXPECT_EQ(all.HeadersFor("null").front().second, "null");
  HttpRequest ask{.method = "OPTIONS",
                  .headers = {{"origin", "https://chat.example"},
                              {"access-control-request-method", "POST"},
                              {"access-control-request-headers", "authorization"}}};
  EXPECT_FALSE(none.Preflight(ask).has_value());
  ASSERT_TRUE(one.Preflight(ask).has_value());
  EXPECT_EQ(one.Preflight(ask)->status, 204);
  EXPECT_EQ(one.Preflight(ask)->headers.back().second, "authorization");
  ask.headers.erase(ask.headers.begin() + 1);
  EXPECT_FALSE(one.Preflight(ask).has_value());  // an OPTIONS of somebody else
}

TEST(BrowserPolicy, KnowsAddressesLocalhostAndConfiguredNames) {
  bool asks = true;
  const BrowserPolicy policy({.origins = {},
                              .asks_for_known_host = [&asks] { return asks; },
                              .hosts = {"Box.example", "proxy.example:8443"}});
  for (const char* known :
       {"127.0.0.1", "127.0.0.1:8000", "10.0.0.7:8000", "[::1]", "[::1]:8000", "localhost", "LocalHost:9464",
        "box.example", "BOX.EXAMPLE:1", "proxy.example:8443"}) {
    EXPECT_EQ(StatusOf(policy, known), 0) << known;
  }
  for (const char* unknown : {"evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000",
                              "box.example.evil", "[::1", "a b", "@127.0.0.1", "127.0.0.1@evil.example",
                              "proxy.example:8444", "2130706433", "[evil.example]:80"}) {
    EXPECT_EQ(StatusOf(policy, unknown), 421) << unknown;
  }
  EXPECT_EQ(StatusOf(policy, ""), 0) << "no browser sends none";
  EXPECT_THAT(policy.Refuse({.headers = {{"host", "evil\x1b"}}})->text,
              testing::AllOf(HasSubstr("\"evil\\x1b\""), HasSubstr("server.http_hosts")));
  asks = false;
  EXPECT_EQ(StatusOf(policy, "evil.example"), 0) << "the listener asks for tokens";
  EXPECT_EQ(StatusOf(OfOrigins({}), "evil.example"), 0);
}

TEST(BrowserPolicy, RefusesPagesOfOtherOrigins) {
  const BrowserPolicy policy = OfOrigins({"https://chat.example"});
  const struct {
    const char* host;
    const char* origin;
    int status;
  } cases[] = {
      {"127.0.0.1:8000", "http://127.0.0.1:8000", 0},
      {"Box.example:8000", "https://box.example:8000", 0},
      {"box.example:80", "http://box.example", 0},
      {"box.example:443", "https://box.example", 0},
      {"box.example", "http://box.example", 0},
      {"box.example", "https://chat.example", 0},
      {"127.0.0.1:8000", "", 0},
      {"127.0.0.1:8000", "http://127.0.0.1:8001", 403},
      {"127.0.0.1:8000", "http://localhost:8000", 403},
      {"127.0.0.1:8000", "http://evil.example", 403},
      {"127.0.0.1:8000", "null", 403},
      {"127.0.0.1:8000", "file://127.0.0.1:8000", 403},
      {"box.example:443", "http://box.example", 403},
      {"box.example", "https://chat.example.evil", 403},
      {"", "http://", 403},
  };
  for (const auto& [host, origin, status] : cases) {
    EXPECT_EQ(StatusOf(policy, host, origin), status) << host << " " << origin;
  }
  EXPECT_THAT(policy.Refuse({.headers = {{"origin", "http://evil.example"}}})->text,
              HasSubstr("server.cors_origins"));
  EXPECT_EQ(StatusOf(OfOrigins({"*"}), "127.0.0.1:8000", "http://evil.example"), 0);
}

}  // namespace
}  // namespace foredraft
