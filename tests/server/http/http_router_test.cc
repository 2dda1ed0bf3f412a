// Paths, methods and pages of the wires over HTTP, on a real port.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "server/api/http/paths.h"
#include "tests/server/http/http_client.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;

TEST(Paths, LoseOneSlashAtEachEnd) {
  EXPECT_EQ(NormalPath("/v1/models"), "/v1/models");
  EXPECT_EQ(NormalPath("//v1/models/"), "/v1/models");
  EXPECT_EQ(NormalPath("///v1//models//"), "//v1//models/");
  EXPECT_EQ(NormalPath("/"), "/");
  EXPECT_EQ(NormalPath(""), "");
}

TEST(Paths, AreDecodedOnce) {
  EXPECT_EQ(PercentDecoded("zai-org%2fX%2520"), "zai-org/X%20");
  for (const char* bad : {"%", "%2", "%zz", "a%00", "%+1", "%2%"})
    EXPECT_EQ(PercentDecoded(bad), std::nullopt) << bad;
}

class HttpRouterTest : public testing::Test {
 protected:
  static TestServerOptions Options() {
    TestServerOptions options;
    options.frontend.server.http_address = "127.0.0.1:0";
    options.frontend.server.metrics_address = "127.0.0.1:0";
    return options;
  }
  explicit HttpRouterTest(const TestServerOptions& options = Options()) : server_(options) {}

  HttpReply Get(const std::string& path, const std::string& method = "GET") {
    return Ask(server_.listeners().http_port(), method, path);
  }

  TestServer server_;
};

TEST_F(HttpRouterTest, ModelsAreListedForBothLibraries) {
  for (const char* path : {"/v1/models", "//v1/models", "/v1/models/", "/v1/models?limit=20"}) {
    const json list = json::parse(Get(path).body);
    EXPECT_EQ(list["data"][0]["id"], "scripted") << path;
    EXPECT_EQ(list["first_id"], "scripted");
    EXPECT_EQ(list["has_more"], false);
    EXPECT_THAT(list["data"][0]["created_at"].get<std::string>(),
                testing::MatchesRegex("....-..-..T..:..:..Z"));
  }
  EXPECT_EQ(json::parse(Get("/v1/models/s%63ripted").body)["display_name"], "scripted");
  EXPECT_EQ(Get("/v1/models/org/scripted").status, 404);
  EXPECT_EQ(Get("/v1/models/%00").status, 400);
  EXPECT_EQ(Get("/v1/models/%g0").status, 400);
  EXPECT_EQ(Get("/v1%2fmodels").status, 404);
}

TEST_F(HttpRouterTest, PagesAndMethods) {
  EXPECT_EQ(Get("/ping").status, 200);
  EXPECT_EQ(json::parse(Get("/version").body).size(), 1u);
  EXPECT_EQ(Get("/version", "DELETE").status, 405);
  const HttpReply missing = Get("/messages", "POST");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(json::parse(missing.body)["error"]["message"], "/messages: not here, allowed /v1/messages");
  for (const auto& [path, allowed] :
       {std::pair("/v1/chat/completions", "POST"), std::pair("/v1/messages", "POST"),
        std::pair("/v1/models", "GET, HEAD")}) {
    const HttpReply options = Get(path, "OPTIONS");
    EXPECT_EQ(options.status, 204) << path;
    EXPECT_EQ(options.headers.at("allow"), allowed);
  }
  EXPECT_EQ(Get("/elsewhere", "OPTIONS").status, 404);
}

TEST_F(HttpRouterTest, MetricsAreElsewhere) {
  const HttpReply reply = Get("/metrics");
  EXPECT_EQ(reply.status, 404);
  EXPECT_THAT(reply.body, testing::HasSubstr("allowed on server.metrics_address, 127.0.0.1:0"));
}

class NamesTest : public HttpRouterTest {
 protected:
  static TestServerOptions WithNames() {
    TestServerOptions options = Options();
    options.frontend.server.model_aliases = {"gpt-4o", "claude-*"};
    options.frontend.metrics_on_http = true;
    options.frontend.server.auth.tokens_file = testing::TempDir() + "/router_tokens";
    std::ofstream(options.frontend.server.auth.tokens_file, std::ios::trunc)
        << TokenLine(Role::kApi, "alice", "s3cret") << "\n";
    return options;
  }
  NamesTest() : HttpRouterTest(WithNames()) {}

  HttpReply Ask(const std::string& method, const std::string& path, const std::string& body = "") {
    return foredraft::Ask(server_.listeners().http_port(), method, path, body,
                          {"Authorization: Bearer s3cret"});
  }
};

TEST_F(NamesTest, AnAliasIsTheModelAndComesBack) {
  const std::string long_name = "claude-" + std::string(250, 'x');
  const struct {
    std::string model;
    bool is_taken;
  } cases[] = {{"scripted", true}, {"gpt-4o", true},   {"gpt-4o-mini", false},
               {"claude-", true},  {"claude", false},  {"claude-x*", true},
               {"GPT-4o", false},  {"claude-*", true}, {long_name, false}};
  for (const auto& [model, is_taken] : cases) {
    const json chat = {
        {"model", model}, {"max_tokens", 2}, {"messages", {{{"role", "user"}, {"content", "1"}}}}};
    const json response = {{"model", model}, {"max_output_tokens", 2}, {"input", "1"}};
    for (const auto& [path, body] : {std::pair("/v1/chat/completions", chat), std::pair("/v1/messages", chat),
                                     std::pair("/v1/responses", response)}) {
      const HttpReply reply = Ask("POST", path, body.dump());
      EXPECT_EQ(reply.status, is_taken ? 200 : 404) << model << ": " << reply.body;
      if (!is_taken) continue;
      EXPECT_EQ(json::parse(reply.body)["model"], model) << path;
      json streamed = body;
      streamed["stream"] = true;
      EXPECT_THAT(Ask("POST", path, streamed.dump()).body, testing::HasSubstr("\"model\":\"" + model + "\""))
          << path;
    }
    if (model.find('*') != std::string::npos) continue;
    EXPECT_EQ(Ask("GET", "/v1/models/" + model).status, is_taken ? 200 : 404) << model;
  }
  const json list = json::parse(Ask("GET", "/v1/models").body);
  EXPECT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(list["data"][0]["id"], "scripted");
}

TEST_F(NamesTest, MetricsAreForCallersOfTheApi) {
  EXPECT_EQ(Get("/metrics").status, 401);
  const HttpReply page = Ask("GET", "/metrics");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), kMetricsPageType);
  EXPECT_THAT(page.body, testing::HasSubstr("foredraft_requests_waiting"));
  EXPECT_EQ(Ask("POST", "/metrics").status, 405);
}

TEST_F(HttpRouterTest, WhatTheListenerRefusesHasTheWiresForm) {
  const auto refused = [this](const std::string& path) {
    HttpClient client(server_.listeners().http_port());
    client.Send("POST " + path +
                " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                "99999999999\r\n\r\n");
    return client.Read();
  };
  const HttpReply messages = refused("/v1/messages/");
  EXPECT_EQ(messages.status, 413);
  EXPECT_EQ(json::parse(messages.body)["error"]["type"], "request_too_large");
  EXPECT_EQ(json::parse(refused("/v1/chat/completions").body)["error"]["code"], "refused");
}

}  // namespace
}  // namespace foredraft
