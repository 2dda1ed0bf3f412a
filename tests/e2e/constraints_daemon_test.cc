// Structured output of the binary that serves abacus: what every wire gives follows what was asked, with
// drafts and without, and the tokens are the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/e2e/daemon_fixture.h"
#include "tests/server/http/http_client.h"

namespace foredraft {
namespace {

using nlohmann::json;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kQuestion[] = "Compute 5+81.";

int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

class ConstraintsDaemon : public testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new Daemon; }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }

  static json Generate(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--json", "--max-tokens", "400"});
    const RunResult result = daemon_->Generate(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }
  // The answer, which must be the same without drafts, greedily and sampled.
  static std::vector<std::string> Texts(const std::vector<std::string>& constraint) {
    std::vector<std::string> texts;
    for (const char* temperature : {"0", "1"}) {
      std::vector<std::string> arguments = {"--chat", kQuestion, "--seed", "7", "--temperature", temperature};
      arguments.insert(arguments.end(), constraint.begin(), constraint.end());
      const json drafted = Generate(arguments);
      arguments.insert(arguments.end(), {"--max-draft-tokens", "0"});
      const json plain = Generate(arguments);
      EXPECT_EQ(drafted["token_ids"], plain["token_ids"]) << testing::PrintToString(constraint);
      EXPECT_EQ(drafted["finish_reason"], "stop") << drafted;
      EXPECT_NE(drafted["thinking"], "") << "the thought is free";
      texts.push_back(drafted["text"]);
    }
    return texts;
  }

  static inline Daemon* daemon_ = nullptr;
};

TEST_F(ConstraintsDaemon, ExpressionsChoicesAndGrammarsHold) {
  for (const std::string& text : Texts({"--regex", "[0-9]{1,5}"})) {
    EXPECT_TRUE(std::regex_match(text, std::regex("[0-9]{1,5}"))) << text;
  }
  for (const std::string& text : Texts({"--choice", "eighty-six", "--choice", "ninety"})) {
    EXPECT_THAT(text, testing::AnyOf("eighty-six", "ninety"));
  }
  const std::string path = TestDir("constraints") + "/sum.gbnf";
  WriteText(path, "root ::= \"sum=\" [0-9]{1,4}\n");
  for (const std::string& text : Texts({"--grammar", path})) {
    EXPECT_TRUE(std::regex_match(text, std::regex("sum=[0-9]{1,4}"))) << text;
  }
}

TEST_F(ConstraintsDaemon, SchemasHold) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"integer","minimum":0,"maximum":99},"op":{"enum":["+","-"]},
          "ok":{"type":"boolean"}},"required":["a","op","ok"],"additionalProperties":false})";
  for (const std::string& text : Texts({"--json-schema", schema})) {
    const json value = json::parse(text, nullptr, false);
    ASSERT_TRUE(value.is_object()) << text;
    EXPECT_EQ(value.size(), 3u);
    EXPECT_TRUE(value["a"].is_number_integer() && value["a"] >= 0 && value["a"] <= 99) << text;
    EXPECT_TRUE(value["op"] == "+" || value["op"] == "-") << text;
    EXPECT_TRUE(value["ok"].is_boolean()) << text;
  }
}

TEST_F(ConstraintsDaemon, TheWiresGiveTheSameTokens) {
  const json schema = {{"type", "object"},
                       {"properties", {{"a", {{"type", "integer"}, {"minimum", 0}, {"maximum", 999}}}}},
                       {"required", {"a"}},
                       {"additionalProperties", false}};
  const json grpc =
      Generate({"--chat", kQuestion, "--seed", "3", "--temperature", "1", "--json-schema", schema.dump()});
  const json body = {
      {"messages", {{{"role", "user"}, {"content", kQuestion}}}},
      {"seed", 3},
      {"temperature", 1},
      {"max_tokens", 400},
      {"return_token_ids", true},
      {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}}}};
  const HttpReply reply = Ask(PortOf(daemon_->http_address()), "POST", kChat, body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(json::parse(reply.body)["choices"][0]["token_ids"], grpc["token_ids"]);
}

TEST_F(ConstraintsDaemon, ForcedCallsAreCalls) {
  const json tool = {{"type", "function"},
                     {"function",
                      {{"name", "add"},
                       {"strict", true},
                       {"parameters",
                        {{"type", "object"},
                         {"properties",
                          {{"x", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}},
                           {"how", {{"enum", {"fast", "slow"}}}}}},
                         {"required", {"x", "how"}},
                         {"additionalProperties", false}}}}}};
  for (const json& choice : {json("required"), json{{"type", "function"}, {"function", {{"name", "add"}}}}}) {
    json body = {{"messages", {{{"role", "user"}, {"content", kQuestion}}}},
                 {"tools", {tool}},
                 {"tool_choice", choice},
                 {"parallel_tool_calls", false},
                 {"temperature", 0},
                 {"max_tokens", 600},
                 {"return_token_ids", true}};
    const HttpReply reply = Ask(PortOf(daemon_->http_address()), "POST", kChat, body.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json answer = json::parse(reply.body)["choices"][0];
    EXPECT_EQ(answer["finish_reason"], "tool_calls") << answer;
    ASSERT_EQ(answer["message"]["tool_calls"].size(), 1u);
    const json& function = answer["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(function["name"], "add");
    const json arguments = json::parse(function["arguments"].get<std::string>(), nullptr, false);
    EXPECT_TRUE(arguments["x"].is_number_integer() && arguments["x"] >= 0 && arguments["x"] <= 99)
        << arguments;
    EXPECT_TRUE(arguments["how"] == "fast" || arguments["how"] == "slow") << arguments;
    body["max_draft_tokens"] = 0;
    const HttpReply plain = Ask(PortOf(daemon_->http_address()), "POST", kChat, body.dump());
    EXPECT_EQ(json::parse(plain.body)["choices"][0]["token_ids"], answer["token_ids"]);
  }
}

TEST_F(ConstraintsDaemon, ManyAtOnceBesideFreeOnes) {
  const auto ids = [](bool constrained) {
    json body = {{"messages", {{{"role", "user"}, {"content", kQuestion}}}},
                 {"n", 12},
                 {"seed", 100},
                 {"temperature", 1},
                 {"max_tokens", 300},
                 {"return_token_ids", true}};
    if (constrained) body["structured_outputs"] = {{"regex", "[a-z]{3}[0-9]{2}"}};
    const HttpReply reply = Ask(PortOf(daemon_->http_address()), "POST", kChat, body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    const json answer = json::parse(reply.body, nullptr, false);
    json tokens = json::array();
    for (const json& choice : answer["choices"]) {
      if (constrained) {
        const std::string text = choice["message"]["content"];
        EXPECT_TRUE(std::regex_match(text, std::regex("[a-z]{3}[0-9]{2}"))) << text;
      }
      tokens.push_back(choice["token_ids"]);
    }
    return tokens;
  };
  const json free = ids(false);
  const json constrained = ids(true);
  EXPECT_EQ(ids(false), free);
  EXPECT_EQ(ids(true), constrained);
}

// A model that would end in its thought goes on to the answer, and the answer is the constraint's alone,
// whole and streamed.
TEST_F(ConstraintsDaemon, AThoughtThatWouldEndTheTurnLeadsToTheAnswer) {
  const int port = PortOf(daemon_->http_address());
  for (const int drafts : {0, 3}) {
    json body = {{"messages", {{{"role", "user"}, {"content", kQuestion}}}},
                 {"temperature", 0},
                 {"max_tokens", 400},
                 {"max_draft_tokens", drafts},
                 {"logit_bias", {{"1", 100}}},  // EOS
                 {"return_token_ids", true},
                 {"structured_outputs", {{"choice", {"yes", "no"}}}}};
    const json choice = json::parse(Ask(port, "POST", kChat, body.dump()).body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop") << choice;
    EXPECT_NE(choice["message"]["reasoning_content"], "") << choice;
    EXPECT_THAT(choice["message"]["content"].get<std::string>(), testing::AnyOf("yes", "no"));
    body["stream"] = true;
    std::string streamed;
    int64_t bytes = 0;
    for (const std::string& event : EventsOf(Ask(port, "POST", kChat, body.dump()).body)) {
      const json chunk = json::parse(event, nullptr, false);
      if (!chunk.is_object() || chunk["choices"].empty()) continue;
      const json& delta = chunk["choices"][0]["delta"];
      if (delta.contains("content") && delta["content"].is_string()) streamed += delta["content"];
      for (const json& count : chunk["choices"][0].value("token_text_bytes", json::array()))
        bytes += count.get<int64_t>();
    }
    EXPECT_EQ(streamed, choice["message"]["content"]);
    EXPECT_EQ(bytes, static_cast<int64_t>(choice["message"]["reasoning_content"].get<std::string>().size() +
                                          streamed.size()));
    body.erase("stream");
    body.erase("structured_outputs");
    const json parameters = {{"type", "object"},
                             {"properties", {{"x", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}}}},
                             {"required", {"x"}},
                             {"additionalProperties", false}};
    body["tools"] = {{{"type", "function"},
                      {"function", {{"name", "add"}, {"strict", true}, {"parameters", parameters}}}}};
    body["tool_choice"] = "required";
    body["parallel_tool_calls"] = false;
    const json called = json::parse(Ask(port, "POST", kChat, body.dump()).body)["choices"][0];
    EXPECT_EQ(called["finish_reason"], "tool_calls") << called;
    EXPECT_GE(called["message"]["tool_calls"].size(), 1u);
    EXPECT_TRUE(called["message"]["content"].is_null()) << called;
  }
}

// A stop id of the client's own ends a thought as it ends anything.
TEST_F(ConstraintsDaemon, TheClientsStopTokensActInAThought) {
  const int port = PortOf(daemon_->http_address());
  json body = {{"messages", {{{"role", "user"}, {"content", kQuestion}}}},
               {"temperature", 0},
               {"max_tokens", 400},
               {"return_token_ids", true},
               {"structured_outputs", {{"choice", {"yes", "no"}}}}};
  const json whole = json::parse(Ask(port, "POST", kChat, body.dump()).body)["choices"][0];
  const json third = whole["token_ids"][3];
  body["stop_token_ids"] = {third};
  const json cut = json::parse(Ask(port, "POST", kChat, body.dump()).body)["choices"][0];
  EXPECT_EQ(cut["stop_reason"], third) << cut;
  EXPECT_LE(cut["token_ids"].size(), 4u);
}

}  // namespace
}  // namespace foredraft
