// Messages as clients of every age and library send them.

#include "server/api/openai/chat_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace foredraft {
namespace {

using nlohmann::json;
using testing::ElementsAre;

struct ReadChat {
  ReadMessagesResult read;
  std::string refusal;
  std::string noted;
};
ReadChat Read(const std::string& text) {
  const json messages = json::parse(text);
  FieldContext context = {.wire = NotedWire::kChat};
  auto read = ReadMessages(&messages, context);
  const std::string refusal(read.status().message());
  return {.read = read.ok() ? *std::move(read) : ReadMessagesResult(),
          .refusal = refusal,
          .noted = context.notes.Header()};
}
ChatMessage One(const std::string& text) {
  const ReadChat chat = Read("[" + text + "]");
  EXPECT_EQ(chat.refusal, "") << text;
  return chat.read.messages.empty() ? ChatMessage() : chat.read.messages.back();
}

TEST(ChatMessages, ContentsAreTextPartsOrNothing) {
  for (const char* role : {"system", "developer", "user", "assistant"}) {
    const std::string begin = std::string(R"({"role": ")") + role + "\"";
    EXPECT_EQ(One(begin + R"(, "content": "a"})").content, "a");
    EXPECT_EQ(One(begin + R"(, "content": null})").content, "");
    EXPECT_EQ(One(begin + "}").content, "");
    EXPECT_EQ(One(begin + R"(, "content": []})").content, "");
  }
  const ChatMessage parts = One(R"({"role": "user", "content": [{"type": "text", "text": "ab"}, {"text": ""},
      {"type": "input_text", "text": "c"}, {"type": "output_text", "text": "d", "annotations": []},
      {"type": "refusal", "refusal": "e"}]})");
  EXPECT_EQ(parts.content, "abcde");
  EXPECT_THAT(parts.part_ends, ElementsAre(2u, 2u, 3u, 4u));
  EXPECT_TRUE(One(R"({"role": "user", "content": [{"type": "text", "text": "ab"}]})").part_ends.empty());
}

TEST(ChatMessages, ThinkingIsTheFirstOfItsNames) {
  const char* const texts[] = {
      R"("reasoning_content": "t", "reasoning": "u")",
      R"("reasoning": "t")",
      R"("thinking": "t")",
      R"("reasoning_content": "", "thinking": "t")",
      R"("reasoning_details": [{"type": "reasoning.text", "text": "t"}, {"type": "reasoning.encrypted", "data": "x"}])",
      R"("thinking_blocks": [{"type": "thinking", "thinking": "t", "signature": "s"}])",
      R"("content": [{"type": "thinking", "thinking": "t", "signature": "s"}])",
      R"("content": [{"type": "reasoning", "text": "t"}])"};
  for (const char* text : texts) {
    const ChatMessage message = One(std::string(R"({"role": "assistant", )") + text + "}");
    EXPECT_EQ(message.thinking, "t") << text;
    EXPECT_EQ(message.content, "") << text;
  }
  const ReadChat user = Read(R"([{"role": "user", "content": "a", "reasoning_content": "t"}])");
  EXPECT_EQ(user.read.messages.at(0).thinking, "");
  EXPECT_EQ(user.noted, "messages[].reasoning_content");
  EXPECT_EQ(Read(R"([{"role": "assistant", "reasoning_details": 5}])").refusal,
            "messages[0].reasoning_details: 5, allowed a list of blocks");
}

TEST(ChatMessages, CallsOfEveryForm) {
  const ChatMessage message = One(R"({"role": "assistant", "tool_calls": [
      {"id": "a", "index": 0, "extra_content": {}, "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}},
      {"id": "b", "type": "custom", "custom": {"name": "g", "input": "x\"y"}}]})");
  ASSERT_EQ(message.tool_calls.size(), 2u);
  EXPECT_EQ(message.tool_calls[0].id, "a");
  EXPECT_EQ(message.tool_calls[1].name, "g");
  EXPECT_EQ(message.tool_calls[1].arguments, R"({"input": "x\"y"})");
  EXPECT_TRUE(One(R"({"role": "assistant", "content": "a", "tool_calls": []})").tool_calls.empty());
  const ReadChat old = Read(R"([{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
      {"role": "function", "name": "f", "content": "x"}])");
  EXPECT_EQ(old.refusal, "");
  EXPECT_EQ(old.read.messages.at(0).tool_calls.at(0).name, "f");
  EXPECT_EQ(old.read.messages.at(1).role, "tool");
  const ReadChat mixed = Read(R"([{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}},
      {"id": "b", "function": {"name": "g"}}]}, {"role": "function", "name": "g", "content": "x"}])");
  EXPECT_EQ(mixed.read.messages.at(1).tool_call_id, "b");
}

TEST(ChatMessages, WhatSaysNothingIsPassedOver) {
  const ReadChat chat =
      Read(R"([{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {},
      "citations": 5}], "name": "bob", "id": 7, "status": "x", "phase": "y", "weight": 1, "timestamp": null,
      "provider_specific_fields": {"x": 1}}])");
  EXPECT_EQ(chat.refusal, "");
  EXPECT_EQ(chat.noted, "messages[].provider_specific_fields, messages[].weight");
}

TEST(ChatMessages, AContinuationIsThatOfTheLastMessage) {
  const ReadChat prefix =
      Read(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "prefix": true}])");
  EXPECT_TRUE(prefix.read.continues);
  EXPECT_TRUE(Read(R"([{"role": "assistant", "reasoning": "b", "partial": true}])").read.continues);
  for (
      const char* none :
      {R"([{"role": "assistant", "content": "b", "prefix": true}, {"role": "user", "content": "a"}])",
       R"([{"role": "user", "content": "b", "prefix": true}])",
       R"([{"role": "assistant", "content": "", "partial": true}])",
       R"([{"role": "assistant", "content": "b", "partial": true, "tool_calls": [{"function": {"name": "f"}}]}])"}) {
    const ReadChat chat = Read(none);
    EXPECT_FALSE(chat.read.continues) << none;
    EXPECT_EQ(chat.noted, "messages[].prefix") << none;
  }
}

}  // namespace
}  // namespace foredraft
