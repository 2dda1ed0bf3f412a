// /tokenize and /detokenize over a real port.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/text/byte_alphabet.h"
#include "tests/server/http/http_client.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class TokenPagesTest : public testing::Test {
 protected:
  static TestServerOptions Options() {
    TestServerOptions options;
    options.frontend.server.http_address = "127.0.0.1:0";
    return options;
  }
  TokenPagesTest() : server_(Options()) {}

  HttpReply Post(const std::string& path, const json& body) {
    return Ask(server_.listeners().http_port(), "POST", path, body.dump());
  }
  json PostOk(const std::string& path, const json& body) {
    const HttpReply reply = Post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.headers.at("content-type"), "application/json");
    return reply.status == 200 ? json::parse(reply.body) : json();
  }
  void ExpectRefused(const std::string& path, const json& body, const std::string& text,
                     const std::string& param) {
    const HttpReply reply = Post(path, body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    const json error = json::parse(reply.body)["error"];
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(text));
    EXPECT_EQ(error["param"], param);
  }

  TestServer server_;
};

TEST_F(TokenPagesTest, ATextBecomesIdsAndComesBack) {
  const std::string text = "Compute 5+81. größer\n\"q\"";
  const std::vector<int32_t> ids = *server_.tokenizer().Encode(text);
  const json plain = PostOk("/tokenize", {{"model", "scripted"}, {"prompt", text}});
  EXPECT_EQ(plain["tokens"].get<std::vector<int32_t>>(), ids);
  EXPECT_EQ(plain["count"], ids.size());
  EXPECT_EQ(plain["max_model_len"], 512);
  EXPECT_EQ(plain["token_strs"], nullptr);
  const json named = PostOk("/tokenize", {{"prompt", text}, {"return_token_strs", true}});
  std::string bytes;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string name = named["token_strs"][i];
    if (server_.tokenizer().AddedTokenId(name) == ids[i]) continue;  // BOS
    bytes += *BytesOfToken(name);
  }
  EXPECT_EQ(bytes, text);
  const json without = PostOk("/tokenize", {{"prompt", text}, {"add_special_tokens", false}});
  EXPECT_EQ(without["tokens"].get<std::vector<int32_t>>(),
            *server_.tokenizer().Encode(text, {.add_bos = false}));
  EXPECT_EQ(PostOk("/detokenize", {{"model", "scripted"}, {"tokens", without["tokens"]}})["prompt"], text);
  EXPECT_EQ(PostOk("/detokenize", {{"tokens", json::array()}})["prompt"], "");
  EXPECT_EQ(PostOk("/tokenize", {{"prompt", ""}, {"add_special_tokens", false}, {"return_token_strs", true}}),
            json::parse(R"({"count": 0, "max_model_len": 512, "tokens": [], "token_strs": []})"));
}

TEST_F(TokenPagesTest, AChatHasTheIdsOfItsPrompt) {
  json chat = {{"messages", {{{"role", "user"}, {"content", "Compute 5+81."}}}},
               {"tools", {{{"type", "function"}, {"function", {{"name", "calculate"}}}}}}};
  const json with_tools = PostOk("/tokenize", chat);
  chat.erase("tools");
  const json without = PostOk("/tokenize", chat);
  EXPECT_GT(with_tools["count"], without["count"]);
  chat["max_tokens"] = 4;
  EXPECT_EQ(PostOk("/v1/chat/completions", chat)["usage"]["prompt_tokens"], without["count"]);
  EXPECT_TRUE(server_.Eventually([&] { return server_.IsIdle(); }));
}

TEST_F(TokenPagesTest, APromptMayBeLongerThanTheContext) {
  const std::string text(20000, 'a');  // read by the threads for long texts
  const json answer = PostOk("/tokenize", {{"prompt", text}});
  EXPECT_GT(answer["count"], 512);
  EXPECT_EQ(answer["tokens"].size(), answer["count"]);
}

TEST_F(TokenPagesTest, WhatIsTooLongOrNoTextIsRefused) {
  ExpectRefused("/tokenize", {{"prompt", std::string((4 << 20) + 1, 'a')}},
                "4,194,305 bytes, allowed at most 4,194,304", "prompt");
  ExpectRefused("/tokenize", {{"prompt", std::string(1 << 20, '~')}}, "server.max_detokenize_ids", "prompt");
  ExpectRefused("/tokenize", {{"prompt", {1, 2}}}, "prompt: not one text, allowed one, or messages",
                "prompt");
  ExpectRefused("/tokenize", json::object(), "prompt: absent, required", "prompt");
  ExpectRefused("/tokenize", {{"prompt", "a"}, {"return_token_strs", 1}}, "return_token_strs: 1",
                "return_token_strs");
  ExpectRefused("/tokenize", {{"messages", json::array()}}, "messages", "messages");
  ExpectRefused("/detokenize", {{"tokens", {1, 1 << 30}}}, "tokens[1]: 1073741824, allowed 0..", "tokens");
  ExpectRefused("/detokenize", {{"tokens", {1, "x"}}}, "tokens[1]: \"x\", allowed a token id", "tokens[1]");
  ExpectRefused("/detokenize", json::object(), "tokens: absent, required", "tokens");
  ExpectRefused("/detokenize", {{"tokens", std::vector<int>((1 << 17) + 1, 5)}},
                "tokens: 131,073 ids, allowed at most 131,072 (server.max_detokenize_ids)", "tokens");
  EXPECT_EQ(Post("/detokenize", {{"tokens", {1}}, {"model", "other"}}).status, 404);
}

TEST(TokenPages, AreForCallersOfTheApi) {
  TestServerOptions options;
  options.frontend.server.http_address = "127.0.0.1:0";
  options.frontend.server.auth.tokens_file = testing::TempDir() + "/token_pages_tokens";
  std::ofstream(options.frontend.server.auth.tokens_file, std::ios::trunc)
      << TokenLine(Role::kApi, "alice", "s3cret") << "\n";
  TestServer server(options);
  const int port = server.listeners().http_port();
  for (const auto& [path, body] :
       {std::pair("/tokenize", R"({"prompt": "a"})"), {"/detokenize", R"({"tokens": []})"}}) {
    EXPECT_EQ(Ask(port, "POST", path, body).status, 401) << path;
    EXPECT_EQ(Ask(port, "POST", path, body, {"Authorization: Bearer s3cret"}).status, 200) << path;
    EXPECT_EQ(Ask(port, "GET", path, "", {"Authorization: Bearer s3cret"}).status, 405) << path;
  }
}

TEST_F(TokenPagesTest, WhatHasNoEffectIsNoted) {
  EXPECT_EQ(Post("/tokenize", {{"prompt", "a"}, {"colour", 1}}).headers.at("x-foredraft-ignored"), "colour");
  EXPECT_EQ(Post("/detokenize", {{"tokens", {1}}, {"colour", 1}}).headers.at("x-foredraft-ignored"),
            "colour");
  const HttpReply elsewhere = Post("/v1/completions", {{"prompt", {5}}, {"return_token_strs", true}});
  EXPECT_EQ(elsewhere.headers.at("x-foredraft-ignored"), "return_token_strs");
  EXPECT_EQ(server_.Metric("ignored_fields_total", {{"wire", "other"}, {"kind", "unknown"}}), 2);
}

}  // namespace
}  // namespace foredraft
