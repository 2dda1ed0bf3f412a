#include "server/api/anthropic/messages_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/api/conversation/message_gatherer.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

MessagesRequest Read(const std::string& body) {
  absl::StatusOr<MessagesRequest> request = ReadMessagesRequest(body);
  EXPECT_TRUE(request.ok()) << request.status() << "\n" << body;
  MessagesRequest failed;
  failed.prompts.emplace_back(ChatMessages());
  return request.ok() ? *std::move(request) : failed;
}

std::string Refusal(const std::string& body) {
  return std::string(ReadMessagesRequest(body).status().message());
}

ChatMessages MessagesOf(const std::string& messages) {
  return std::get<ChatMessages>(Read("{\"messages\": " + messages + "}").prompts.at(0));
}

// "role: content" with thinking, calls and ids.
std::string Shown(const ChatMessage& message) {
  std::string shown = absl::StrCat(message.role, ": ", message.content);
  if (!message.thinking.empty()) absl::StrAppend(&shown, " thinking ", message.thinking);
  for (const ToolCall& call : message.tool_calls) {
    absl::StrAppend(&shown, " call ", call.id, " ", call.name, call.arguments);
  }
  if (!message.tool_call_id.empty()) absl::StrAppend(&shown, " of ", message.tool_call_id);
  for (const std::string& name : message.tool_references) absl::StrAppend(&shown, " shows ", name);
  for (const ToolChange& change : message.tool_changes) {
    absl::StrAppend(&shown, change.removes ? " removes " : " adds ", change.name, " at ", change.at);
    if (change.definition) absl::StrAppend(&shown, " as ", change.definition->parameters);
  }
  return shown;
}

std::vector<std::string> ShownOf(const std::string& messages) {
  std::vector<std::string> shown;
  for (const ChatMessage& message : MessagesOf(messages)) shown.push_back(Shown(message));
  return shown;
}

TEST(MessagesRequest, BlocksBecomeMessages) {
  EXPECT_THAT(
      ShownOf(R"([
      {"role": "user", "content": "What is 48 + 275?"},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I call.", "signature": ""},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "One moment."},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"b": 275, "a":  1e3}},
        {"type": "tool_use", "id": "t2", "name": "now", "input": {}}]},
      {"role": "user", "content": [
        {"type": "text", "text": "Go on."},
        {"type": "tool_result", "tool_use_id": "t2", "content": "noon", "is_error": true},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "3"},
          {"type": "image", "source": {"type": "base64"}}]},
        {"type": "image", "source": {"type": "url", "url": "x"}}]}])"),
      ElementsAre("user: What is 48 + 275?",
                  "assistant: One moment. thinking I call. call t1 add{\"b\": 275, \"a\":  1e3} call "
                  "t2 now{}",
                  "tool: noon of t2", "tool: 3[Unsupported Image] of t1", "user: Go on.[Unsupported Image]"));
}

TEST(MessagesRequest, PartsOfAMessageAreJoinedByTheFamily) {
  const ChatMessages messages = MessagesOf(R"([{"role": "user", "content": [
      {"type": "text", "text": "ab"}, {"type": "text", "text": ""}, {"type": "text", "text": "c"}]}])");
  EXPECT_THAT(messages[0].part_ends, ElementsAre(2, 2));
}

TEST(MessagesRequest, ResultsAloneAreNoUsersMessage) {
  EXPECT_THAT(ShownOf(R"([{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
        {"type": "tool_reference", "tool_name": "g"}]}]}])"),
              ElementsAre("assistant:  call a f", "tool:  of a shows g"));
}

TEST(MessagesRequest, SystemTextsHaveAnEmptyLineBetween) {
  const MessagesRequest request = Read(R"({"system": [
      {"type": "text", "text": "x-anthropic-billing-header: cc_version=2"},
      {"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral"}},
      {"type": "text", "text": "Well."}],
      "messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]})");
  const auto& messages = std::get<ChatMessages>(request.prompts[0]);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(Shown(messages[0]), "system: You add.\n\nWell.");
  EXPECT_EQ(Shown(messages[2]), "system: b");
  EXPECT_THAT(request.items, ElementsAre(GatheredMessages::kHead, 0, 1));
}

TEST(MessagesRequest, SystemMessagesAddAndRemoveTools) {
  const MessagesRequest request = Read(R"({
      "tools": [{"name": "f"}, {"type": "web_search_20250305", "name": "web_search"}],
      "messages": [{"role": "user", "content": "a"}, {"role": "system", "content": [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}},
        {"type": "text", "text": "b"},
        {"type": "tool_addition", "cache_control": {"type": "ephemeral"}, "tool": {"type": "tool_definition",
          "definition": {"name": "f", "input_schema": {"x":  1.50}, "strict": true}}},
        {"type": "text", "text": "c"},
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}]},
      {"role": "system", "content": [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "web_search"}},
        {"type": "tool_addition", "tool": {"type": "tool_definition",
          "definition": {"type": "web_fetch_20250910", "name": "web_fetch"}}},
        {"type": "tool_removal", "tool": {"type": "mcp_toolset_reference", "server_name": "m"}}]}]})");
  const auto& messages = std::get<ChatMessages>(request.prompts[0]);
  ASSERT_EQ(messages.size(), 2u) << "what has no effect is no message";
  EXPECT_EQ(Shown(messages[1]), "system: b\n\nc removes f at 0 adds f at 1 as {\"x\":  1.50} adds f at 4");
  EXPECT_TRUE(messages[1].tool_changes[1].definition->strict);
  EXPECT_TRUE(request.common.tools.has_removed);
  EXPECT_EQ(request.common.notes.Header(),
            "tools[].web_search_20250305, messages[].content[].tool_removal, tools[].web_fetch_20250910, "
            "messages[].content[].tool_addition");
}

TEST(MessagesRequest, AToolThatAMessageDefinesMayBeChosen) {
  const auto choose = [](const std::string& choice) {
    return Read(R"({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": [
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "g"}}}]}],
        "tool_choice": )" +
                choice + "}")
        .common.tools.choice;
  };
  EXPECT_EQ(choose(R"({"type": "tool", "name": "g"})"), "function:g");
  EXPECT_EQ(choose(R"({"type": "any"})"), "required");
}

TEST(MessagesRequest, FaultsOfChangesNameTheirField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("type": "tool_addition")", "messages[0].content[0].tool: absent, required"},
      {R"("type": "tool_removal", "tool": 1)", "messages[0].content[0].tool: 1, allowed an object"},
      {R"("type": "tool_removal", "tool": {"type": "tool_reference"})",
       "messages[0].content[0].tool.name: absent or empty, required"},
      {R"("type": "tool_removal", "tool": {"type": "tool_reference", "name": 7})",
       "messages[0].content[0].tool.name: 7"},
      {R"("type": "tool_removal", "tool": {"type": "tool_definition", "definition": {"name": "g"}})",
       "messages[0].content[0].tool.type: \"tool_definition\", allowed tool_reference, mcp_tool_reference"},
      {R"("type": "tool_addition", "tool": {"type": "tool"})",
       "messages[0].content[0].tool.type: \"tool\", allowed tool_reference, tool_definition, "
       "mcp_tool_reference"},
      {R"("type": "tool_addition", "tool": {"type": "tool_definition"})",
       "messages[0].content[0].tool.definition: absent, required"},
      {R"("type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "a b"}})",
       "messages[0].content[0].tool.definition.name: \"a b\", allowed 1..256 letters"},
      {R"("type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "g",
          "input_schema": []}})",
       "messages[0].content[0].tool.definition.input_schema: []"},
      {R"("type": "image")",
       "messages[0].content[0].type: \"image\", allowed text, tool_addition, tool_removal"},
  };
  for (const auto& [block, text] : cases) {
    const std::string blocks = absl::StrCat("[{", block, "}]");
    EXPECT_THAT(Refusal(R"({"messages": [{"role": "system", "content": )" + blocks + "}]}"), HasSubstr(text))
        << block;
  }
  EXPECT_THAT(Refusal(R"({"messages": [], "system": [{"type": "tool_removal"}]})"),
              HasSubstr("system[0].type: \"tool_removal\", allowed text"));
  EXPECT_THAT(Refusal(R"({"messages": [{"role": "user", "content": [{"type": "tool_removal"}]}]})"),
              HasSubstr("messages[0].content[0].type: \"tool_removal\""));
}

TEST(MessagesRequest, ToolsAndTheirChoice) {
  const auto tools = [](const std::string& choice) {
    return Read(R"({"messages": [{"role": "user", "content": "a"}], "tools": [
        {"name": "add", "description": "Adds", "input_schema": {"type":"object", "x": 1.50}, "strict": true},
        {"type": "custom", "name": "now", "input_schema": {}, "defer_loading": true},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}], "tool_choice": )" +
                choice + "}")
        .common;
  };
  const ClientRequest request = tools(R"({"type": "any", "disable_parallel_tool_use": true})");
  ASSERT_EQ(request.tools.tools.size(), 2u);
  EXPECT_EQ(request.tools.tools[0].parameters, R"({"type":"object", "x": 1.50})");
  EXPECT_TRUE(request.tools.tools[0].strict);
  EXPECT_TRUE(request.tools.tools[1].deferred);
  EXPECT_EQ(request.tools.choice, "required");
  EXPECT_FALSE(request.tools.parallel);
  EXPECT_EQ(request.notes.Header(), "tools[].web_search_20250305");
  EXPECT_EQ(tools(R"({"type": "tool", "name": "add"})").tools.choice, "function:add");
  EXPECT_EQ(tools(R"({"type": "none"})").tools.choice, "none");
  EXPECT_EQ(tools(R"({"type": "auto"})").tools.choice, "auto");
}

TEST(MessagesRequest, TakesWhatClaudeCodeSends) {
  FieldNotes notes;
  const auto request = ReadMessagesRequest(R"({
      "model": "abacus", "max_tokens": 32000, "stream": true,
      "system": [{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "b"}],
      "messages": [{"role": "user", "content": [{"type": "text", "text": "c"}]}],
      "tools": [{"name": "f", "input_schema": {"type": "object"}}], "metadata": {"user_id": "u"},
      "thinking": {"type": "adaptive", "display": "omitted"},
      "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
      "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type":  "object"}}}})",
                                           {.refuses_unknown = true, .notes = &notes});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(notes.Header(), "context_management");
  EXPECT_TRUE(request->stream && request->hides_thinking && request->common.lowers_max_tokens);
  EXPECT_EQ(request->common.max_tokens, 32000);
  EXPECT_EQ(request->common.choices.reasoning_effort, "high");
  EXPECT_EQ(request->common.choices.schema, R"({"type":  "object"})");
  EXPECT_EQ(request->common.constraint->field, "output_config.format.schema");
}

TEST(MessagesRequest, SamplingStopsAndBudgets) {
  const MessagesRequest request = Read(R"({"messages": [{"role": "user", "content": "a"}],
      "stop_sequences": ["x", "y"], "temperature": 0.5, "top_k": 7, "seed": 3, "min_p": 0.25,
      "thinking": {"type": "enabled", "budget_tokens": 100}})");
  EXPECT_THAT(request.common.stop, ElementsAre("x", "y"));
  EXPECT_EQ(request.common.sampling.top_k, 7);
  EXPECT_EQ(request.common.sampling.seed, 3u);
  EXPECT_EQ(request.common.thinking_budget, 100);
  EXPECT_EQ(request.common.choices.thinking, true);
}

TEST(MessagesRequest, AnAssistantsLastMessageIsContinued) {
  const auto continues = [](const std::string& content) {
    return Read(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": )" +
                content + "}]}")
        .common.choices.continues;
  };
  EXPECT_TRUE(continues("\"The sum is\""));
  EXPECT_TRUE(continues(R"([{"type": "thinking", "thinking": "b"}])"));
  EXPECT_FALSE(continues("[]"));
  EXPECT_FALSE(continues(R"([{"type": "tool_use", "id": "a", "name": "f", "input": {}}])"));
}

TEST(MessagesRequest, RefusalsNameTheBlock) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages: absent"},
      {R"({"messages": [{"role": "tool", "content": "a"}]})", "messages[0].role: \"tool\", allowed user"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "messages[0].content: 1"},
      {R"({"messages": [{"role": "user", "content": [{"type": "audio"}]}]})",
       "messages[0].content[0].type: \"audio\""},
      {R"({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]})",
       "messages[0].content[0].tool_use_id: absent"},
      {R"({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f",
          "input": "x"}]}]})",
       "messages[0].content[0].input: \"x\", allowed an object"},
      {R"({"messages": [], "system": [{"type": "image"}]})", "system[0].type: \"image\", allowed text"},
      {R"({"messages": [], "tool_choice": {"type": "any"}})", "tool_choice.type: any"},
      {R"({"messages": [], "tool_choice": {"type": "tool", "name": "f"}})", "tool_choice.name: \"f\""},
      {R"({"messages": [], "tools": [{"name": "f", "input_schema": 1}]})", "tools[0].input_schema: 1"},
      {R"({"messages": [], "n": 2})", "n: 2, allowed 1"},
      {R"({"messages": [], "mcp_servers": [{}]})", "mcp_servers: "},
      {R"({"messages": [], "output_config": {"format": {"type": "text"}}})", "output_config.format.type"},
  };
  for (const auto& [body, text] : cases) EXPECT_THAT(Refusal(body), HasSubstr(text)) << body;
}

}  // namespace
}  // namespace foredraft
