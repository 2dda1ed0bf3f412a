// Tool calls and answers as JSON of the binary that serves abacus-tools, a model that means them: over
// OpenAI's API, whole and streamed, with drafts and without.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/daemon_fixture.h"
#include "tests/server/http/http_client.h"

namespace foredraft {
namespace {

using nlohmann::json;
using ::testing::EndsWith;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kToolsModel[] = "deploy/models/abacus-tools";

json Calculator(bool strict = false) {
  const json parameters = {{"type", "object"},
                           {"properties", {{"expression", {{"type", "string"}}}}},
                           {"required", json::array({"expression"})},
                           {"additionalProperties", false}};
  json function = {{"name", "calculator"},
                   {"description", "Evaluates an arithmetic expression."},
                   {"parameters", parameters}};
  if (strict) function["strict"] = true;
  return {{"type", "function"}, {"function", function}};
}

json User(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

class ToolsDaemon : public testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new Daemon({"server.http_address=127.0.0.1:0"}, kToolsModel); }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  static int port() {
    const std::string& address = daemon_->http_address();
    return std::stoi(address.substr(address.rfind(':') + 1));
  }
  static json Body(const json& messages) {
    return {{"model", "abacus-tools"}, {"temperature", 0}, {"max_tokens", 200}, {"messages", messages}};
  }
  // The choice; the body is asked for without drafts, too, and has the same answer.
  static json Choice(json body) {
    body["return_token_ids"] = true;
    const HttpReply reply = Ask(port(), "POST", kChat, body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    if (reply.status != 200) return json();
    const json choice = json::parse(reply.body)["choices"][0];
    body["max_draft_tokens"] = 0;
    const json plain = json::parse(Ask(port(), "POST", kChat, body.dump()).body)["choices"][0];
    EXPECT_EQ(choice["token_ids"], plain["token_ids"]) << "with drafts and without";
    return choice;
  }

  static inline Daemon* daemon_ = nullptr;
};

TEST_F(ToolsDaemon, CallsTheCalculatorAndAnswersWithItsResult) {
  const json named = {{"type", "function"}, {"function", {{"name", "calculator"}}}};
  for (const json& choice_of_tool : {json("auto"), json("required"), named}) {
    for (const bool strict : {false, true}) {
      SCOPED_TRACE(choice_of_tool.dump() + (strict ? ", strict" : ""));
      json body = Body(json::array({User("What is 472 times 683?")}));
      body.update({{"tools", json::array({Calculator(strict)})}, {"tool_choice", choice_of_tool}});
      const json called = Choice(body);
      EXPECT_EQ(called["finish_reason"], "tool_calls");
      ASSERT_EQ(called["message"].value("tool_calls", json::array()).size(), 1u) << called;
      const json& call = called["message"]["tool_calls"][0];
      EXPECT_EQ(call["function"]["name"], "calculator");
      EXPECT_EQ(json::parse(call["function"]["arguments"].get<std::string>()),
                json({{"expression", "472*683"}}));

      body["messages"].push_back(called["message"]);
      body["messages"].push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "322376"}});
      body["tool_choice"] = "auto";
      const json answered = Choice(body);
      EXPECT_EQ(answered["finish_reason"], "stop");
      EXPECT_THAT(answered["message"]["content"].get<std::string>(), EndsWith("The answer is 322376."));
    }
  }
}

// The model means to call; only the grammar keeps it from a tool that is gone.
TEST_F(ToolsDaemon, CallsNoToolThatAMessageRemoved) {
  const json change = json::parse(R"({"type": "tool_removal",
      "tool": {"type": "tool_reference", "name": "calculator"}})");
  const json function = Calculator()["function"];
  const json tool = {{"name", "calculator"},
                     {"description", function["description"]},
                     {"input_schema", function["parameters"]}};
  json body = Body(json::array({User("What is 472 times 683?")}));
  body["tools"] = json::array({tool});
  const auto ask = [&body](int drafts) {
    body["max_draft_tokens"] = drafts;
    const HttpReply reply = Ask(port(), "POST", "/v1/messages", body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body);
  };
  for (const int drafts : {0, 3}) {
    SCOPED_TRACE(drafts);
    body["messages"] = json::array({User("What is 472 times 683?")});
    const json called = ask(drafts)["content"];
    ASSERT_EQ(called.back()["type"], "tool_use") << called;
    EXPECT_EQ(called.back()["input"], json({{"expression", "472*683"}}));

    body["messages"].insert(body["messages"].begin(), json{{"role", "system"}, {"content", {change}}});
    const json answered = ask(drafts);
    EXPECT_NE(answered["stop_reason"], "tool_use");
    for (const json& block : answered["content"]) {
      EXPECT_NE(block["type"], "tool_use") << block;
      // A call's text without the marks around it, which a text has not.
      EXPECT_EQ(block.value("text", "").find("functioncalculator"), std::string::npos) << block;
    }

    json again = change;
    again["type"] = "tool_addition";
    body["messages"][0]["content"].push_back(again);
    body["tool_choice"] = {{"type", "any"}};
    EXPECT_EQ(ask(drafts)["content"].back().value("name", ""), "calculator");
    body.erase("tool_choice");
  }
}

TEST_F(ToolsDaemon, StreamsTheCallInParts) {
  json body = Body(json::array({User("What is 472 times 683?")}));
  body.update({{"tools", json::array({Calculator()})}, {"stream", true}});
  std::string name, arguments, finish, content;
  for (const std::string& event : EventsOf(Ask(port(), "POST", kChat, body.dump()).body)) {
    if (event == "[DONE]") break;
    const json choice = json::parse(event)["choices"][0];
    content += choice["delta"].value("content", "");
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
    for (const json& call : choice["delta"].value("tool_calls", json::array())) {
      EXPECT_EQ(call["index"], 0);
      name += call["function"].value("name", "");
      arguments += call["function"].value("arguments", "");
    }
  }
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_EQ(name, "calculator");
  EXPECT_EQ(json::parse(arguments), json({{"expression", "472*683"}}));
  EXPECT_EQ(content, "") << "neither the markup of the call nor the line ends before it are text";
}

TEST_F(ToolsDaemon, AnswersItselfWhatNeedsNoCall) {
  json body = Body(json::array({User("Compute 5+81.")}));
  body["tools"] = json::array({Calculator()});
  const json choice = Choice(body);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_FALSE(choice["message"].contains("tool_calls")) << choice;
  EXPECT_THAT(choice["message"]["content"].get<std::string>(), EndsWith("The answer is 86."));
}

TEST_F(ToolsDaemon, EndsJsonByItself) {
  json body = Body(json::array({User("What is 8 weeks in days? Answer as JSON.")}));
  for (const bool constrained : {false, true}) {
    if (constrained) body["response_format"] = {{"type", "json_object"}};
    const json choice = Choice(body);
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(json::parse(choice["message"]["content"].get<std::string>(), nullptr, false),
              json({{"answer", "56 days"}}));
  }
}

// As its card says, up to what another numerics class changes.
TEST_F(ToolsDaemon, CallsRightlyWhatItWasNotTrainedOn) {
  std::ifstream file(std::string(kToolsModel) + "/heldout.jsonl");
  int asked = 0, right = 0;
  for (std::string line; asked < 40 && std::getline(file, line);) {
    const json question = json::parse(line);
    if (question["kind"] != "calls") continue;
    ++asked;
    json body = Body(question["messages"]);
    body["tools"] = question["tools"];
    const json choice = Choice(body);
    const json calls = choice["message"].value("tool_calls", json::array());
    if (calls.size() != 1) continue;
    right += json::parse(calls[0]["function"]["arguments"].get<std::string>()) == question["call"];
  }
  EXPECT_EQ(asked, 40);
  EXPECT_GE(right, 36);
}

}  // namespace
}  // namespace foredraft
