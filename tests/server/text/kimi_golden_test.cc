// Prompts of Kimi-K2.5 and K2.6 by their chat template, and tools by their encoder of declarations;
// tests/golden/make_kimi_golden.py made the golden.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/text/chat_format.h"
#include "server/text/families/typescript_tools.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

using Json = nlohmann::json;

Json Golden() {
  std::ifstream file("tests/golden/kimi_chat.golden.json");
  return Json::parse(file);
}

ChatTool ToolOf(const Json& tool) {
  const Json& function = tool["function"];
  ChatTool read = {.name = function["name"].get<std::string>(),
                   .description = function.value("description", "")};
  if (function.contains("parameters")) read.parameters = function["parameters"].dump();
  return read;
}

std::vector<ChatMessage> MessagesOf(const Json& request) {
  std::vector<ChatMessage> messages;
  for (const Json& message : request["messages"]) {
    ChatMessage& read = messages.emplace_back();
    read.role = message["role"].get<std::string>();
    read.content = message["content"].get<std::string>();
    read.thinking = message.value("reasoning_content", "");
    read.tool_call_id = message.value("tool_call_id", "");
    for (const Json& call : message.value("tool_calls", Json::array())) {
      read.tool_calls.push_back({.id = call["id"].get<std::string>(),
                                 .name = call["function"]["name"].get<std::string>(),
                                 .arguments = call["function"]["arguments"].get<std::string>()});
    }
  }
  return messages;
}

TEST(KimiGolden, DeclaresToolsAsTheirEncoder) {
  const Json golden = Golden();
  ASSERT_GE(golden["tools"].size(), 400u);
  int without = 0;
  for (const Json& test_case : golden["tools"]) {
    const std::vector<ChatTool> tools = {ToolOf(test_case["tool"])};
    const auto declaration = TypescriptTools(tools);
    const Json& expected = test_case["declaration"];
    without += expected.is_null() ? 1 : 0;
    EXPECT_EQ(declaration.has_value() ? Json(*declaration) : Json(), expected) << test_case["tool"];
  }
  EXPECT_GT(without, 20);
}

// Deep schemas of many lines would become a hundred times as large; they are declared as JSON.
TEST(KimiTools, DeclarationsDoNotGrowWithoutBound) {
  const auto nested = [](int depth, const std::string& description) {
    Json schema = {{"type", "string"}, {"description", description}};
    for (int i = 0; i < depth; ++i) schema = {{"type", "object"}, {"properties", {{"a", schema}}}};
    return std::vector<ChatTool>{{.name = "f", .parameters = schema.dump()}};
  };
  std::string lines;
  for (int i = 0; i < 20'000; ++i) lines += "a\n";
  EXPECT_TRUE(TypescriptTools(nested(1, lines)).has_value());
  EXPECT_FALSE(TypescriptTools(nested(25, lines)).has_value());
  EXPECT_TRUE(TypescriptTools(nested(25, "a\n")).has_value());
}

TEST(KimiGolden, RendersAsTheTemplate) {
  const Json golden = Golden();
  ASSERT_GE(golden["cases"].size(), 150u);
  const auto tokenizer = KimiTokenizer(kKimi26Template);
  const auto format = ChatFormat::Create(*tokenizer, "");
  ASSERT_TRUE(format.ok()) << format.status();
  for (const Json& test_case : golden["cases"]) {
    const Json& request = test_case["request"];
    ChatChoices choices;
    if (request.contains("thinking")) choices.thinking = request["thinking"].get<bool>();
    if (request.contains("preserve_thinking")) {
      choices.preserve_thinking = request["preserve_thinking"].get<bool>();
    }
    ChatTools tools;
    for (const Json& tool : request["tools"]) tools.tools.push_back(ToolOf(tool));
    const auto ids = format->Render(MessagesOf(request), choices, tools);
    ASSERT_TRUE(ids.ok()) << ids.status() << request;
    EXPECT_EQ(tokenizer->Decode(*ids, /*skip_special=*/false), test_case["prompt"].get<std::string>())
        << request;
  }
}

}  // namespace
}  // namespace foredraft
