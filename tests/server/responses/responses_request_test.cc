#include "server/api/responses/responses_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/api/conversation/message_gatherer.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ResponsesRequest Read(const std::string& body) {
  absl::StatusOr<ResponsesRequest> request = ReadResponsesRequest(body);
  EXPECT_TRUE(request.ok()) << request.status() << "\n" << body;
  ResponsesRequest failed;
  failed.prompts.emplace_back(ChatMessages());
  return request.ok() ? *std::move(request) : failed;
}

std::string Shown(const ChatMessage& message) {
  std::string shown = absl::StrCat(message.role, ": ", message.content);
  if (!message.thinking.empty()) absl::StrAppend(&shown, " thinking ", message.thinking);
  for (const ToolCall& call : message.tool_calls) {
    absl::StrAppend(&shown, " call ", call.id, " ", call.name, call.arguments);
  }
  if (!message.tool_call_id.empty()) absl::StrAppend(&shown, " of ", message.tool_call_id);
  return shown;
}

std::vector<std::string> ShownOf(const ResponsesRequest& request) {
  std::vector<std::string> shown;
  for (const ChatMessage& message : std::get<ChatMessages>(request.prompts.at(0))) {
    shown.push_back(Shown(message));
  }
  return shown;
}

TEST(ResponsesRequest, ATextIsOneUsersMessage) {
  const ResponsesRequest request = Read(R"({"input": "What is 48 + 275?", "instructions": "Add."})");
  EXPECT_THAT(ShownOf(request), ElementsAre("system: Add.", "user: What is 48 + 275?"));
  EXPECT_THAT(request.items, ElementsAre(GatheredMessages::kHead, 0));
}

TEST(ResponsesRequest, ItemsOfAnAnswerAreOneMessage) {
  const ResponsesRequest request = Read(R"({"input": [
      {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Add."}]},
      {"role": "user", "content": "48 + 275"},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}],
       "content": [{"type": "reasoning_text", "text": "long"}], "encrypted_content": "x"},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
      {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "read", "namespace": "files",
       "arguments": "{\"b\":  1}"},
      {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "x \"y\"\n"},
      {"type": "custom_tool_call_output", "call_id": "b", "output": "done"},
      {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "323"},
        {"type": "input_image", "image_url": "data:"}]},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]},
      {"type": "function_call", "call_id": "c", "name": "now", "arguments": ""},
      {"type": "web_search_call", "id": "ws", "action": {"query": "q"}}]})");
  EXPECT_THAT(
      ShownOf(request),
      ElementsAre("system: Add.", "user: 48 + 275",
                  "assistant: I look. thinking long call a files__read{\"b\":  1} call b patch{\"input\": "
                  "\"x \\\"y\\\"\\n\"}",
                  "tool: done of b", "tool: 323[Unsupported Image] of a",
                  "assistant:  thinking short call c now"));
  EXPECT_THAT(request.items, ElementsAre(0, 1, 2, 6, 7, 8));
  EXPECT_EQ(request.common.notes.Header(), "input[].output[].input_image, input[].web_search_call");
}

TEST(ResponsesRequest, ToolsOfAllKindsAreFunctionsInThePrompt) {
  const ResponsesRequest request = Read(R"({"input": [{"role": "user", "content": "a"},
      {"type": "additional_tools", "tools": [{"type": "function", "name": "late"}]}], "tools": [
      {"type": "function", "name": "shell", "description": "Runs", "parameters": {"type":  "object"},
       "strict": true},
      {"type": "custom", "name": "apply_patch", "description": "Patches",
       "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
      {"type": "namespace", "name": "files", "description": "Files", "tools": [
        {"type": "function", "name": "read", "parameters": {"a": 1.0}, "defer_loading": true},
        {"type": "custom", "name": "write"}]},
      {"type": "web_search", "external_web_access": false}],
      "tool_choice": {"type": "custom", "name": "apply_patch"}, "parallel_tool_calls": false})");
  const ChatTools& tools = request.common.tools;
  std::vector<std::string> names;
  for (const ChatTool& tool : tools.tools) names.push_back(tool.name);
  EXPECT_THAT(names, ElementsAre("shell", "apply_patch", "files__read", "files__write", "late"));
  EXPECT_EQ(tools.tools[0].parameters, R"({"type":  "object"})");
  EXPECT_TRUE(tools.tools[0].strict);
  EXPECT_THAT(tools.tools[1].parameters, HasSubstr("\"input\""));
  EXPECT_EQ(tools.tools[2].parameters, R"({"a": 1.0})");
  EXPECT_TRUE(tools.tools[2].deferred);
  EXPECT_EQ(tools.choice, "function:apply_patch");
  EXPECT_FALSE(tools.parallel);
  EXPECT_EQ(request.common.notes.Header(), "tools[].format, tools[].web_search");
  ASSERT_EQ(request.sent_tools.size(), 3u);
  EXPECT_TRUE(request.sent_tools.at("apply_patch").is_custom);
  EXPECT_EQ(request.sent_tools.at("files__read").name_space, "files");
  EXPECT_TRUE(request.sent_tools.at("files__write").is_custom);
}

TEST(ResponsesRequest, AllowedToolsMayBeInANamespace) {
  const ResponsesRequest request = Read(R"({"input": "a", "tools": [{"type": "function", "name": "f"},
      {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}],
      "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [
        {"type": "function", "name": "f", "namespace": "n"}]}})");
  EXPECT_THAT(request.common.tools.allowed, ElementsAre("n__f"));
  EXPECT_EQ(request.common.tools.choice, "required");
}

TEST(ResponsesRequest, SchemasLimitsAndThinking) {
  const ResponsesRequest request =
      Read(R"({"input": "a", "max_tokens": 5, "max_output_tokens": 7, "top_p": 0.5,
      "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type":  "integer"}, "strict": true},
               "verbosity": "low"},
      "reasoning": {"effort": "low", "summary": "auto"}, "truncation": "auto", "thinking_token_budget": 9,
      "store": true, "include": ["reasoning.encrypted_content"], "client_metadata": {"a": "b"}})");
  EXPECT_EQ(request.common.max_tokens, 7);
  EXPECT_STREQ(request.max_tokens_field, "max_output_tokens");
  EXPECT_TRUE(request.common.lowers_max_tokens);
  EXPECT_EQ(request.common.constraint->field, "text.format.schema");
  EXPECT_EQ(request.common.constraint->source, R"({"type":  "integer"})");
  EXPECT_EQ(request.common.choices.schema, R"({"type":  "integer"})");
  EXPECT_EQ(request.common.choices.reasoning_effort, "low");
  EXPECT_EQ(request.common.thinking_budget, 9);
  EXPECT_EQ(request.common.notes.Header(), "text.verbosity, reasoning.summary, truncation");
  EXPECT_EQ(request.repeated.at("top_p"), "0.5");
  EXPECT_FALSE(request.repeated.contains("input") || request.repeated.contains("store"));
  EXPECT_EQ(Read(R"({"input": "a", "text": {"format": {"type": "text"}}})").common.constraint, std::nullopt);
}

TEST(ResponsesRequest, RefusalsNameTheItem) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input: absent"},
      {R"({"input": 1})", "input: 1, allowed a text or a list"},
      {R"({"input": [{"role": "tool", "content": "a"}]})", "input[0].role: \"tool\""},
      {R"({"input": [{"role": "user", "content": [{"type": "audio"}]}]})",
       "input[0].content[0].type: \"audio\""},
      {R"({"input": [{"type": "function_call", "name": "f"}]})", "input[0].call_id: absent"},
      {R"({"input": [{"type": "item_reference", "id": "x"}]})", "input[0].type: \"item_reference\""},
      {R"({"input": "a", "previous_response_id": "resp_1"})",
       "previous_response_id: \"resp_1\", allowed unset"},
      {R"({"input": "a", "background": true})", "background: true, allowed false"},
      {R"({"input": "a", "tool_choice": {"type": "web_search"}})", "tool_choice.type: \"web_search\""},
      {R"({"input": "a", "tool_choice": {"type": "function", "name": "f"}})", "tool_choice.name: \"f\""},
      {R"({"input": "a", "text": {"format": {"type": "xml"}}})", "text.format.type: \"xml\""},
      {R"({"input": "a", "text": {"format": {"type": "json_schema"}}})", "text.format.schema: absent"},
      {R"({"input": "a", "tools": [{"type": "namespace", "name": "n", "tools": [1]}]})",
       "tools[0].tools[0]: 1"},
  };
  for (const auto& [body, text] : cases) {
    EXPECT_THAT(std::string(ReadResponsesRequest(body).status().message()), HasSubstr(text)) << body;
  }
}

}  // namespace
}  // namespace foredraft
