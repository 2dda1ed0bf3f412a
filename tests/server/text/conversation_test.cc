// Conversations that end, begin or are ordered otherwise than a chat: as agents send them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/text/chat_format.h"
#include "server/text/conversation_check.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

// A family with its tokenizer.
struct Family {
  const char* name;
  std::unique_ptr<Tokenizer> tokenizer;
  const char* own_format = "deepseek_r1";

  std::string Render(const std::vector<ChatMessage>& messages, const ChatChoices& choices = {},
                     const ChatTools& tools = {}, FieldNotes* notes = nullptr) const {
    const auto format = ChatFormat::Create(*tokenizer, own_format);
    EXPECT_TRUE(format.ok()) << format.status();
    const auto ids = format->Render(messages, choices, tools, notes);
    return ids.ok() ? tokenizer->Decode(*ids, /*skip_special=*/false) : std::string(ids.status().message());
  }
};

Family R1() { return {"R1", DeepseekTokenizer(nullptr)}; }
Family V31() { return {"V3.1", DeepseekTokenizer(kV31Template)}; }
Family V32() { return {"V3.2", DeepseekTokenizer(nullptr), "deepseek_v32"}; }
Family V4() { return {"V4", DeepseekTokenizer(nullptr), "deepseek_v4"}; }
Family Glm47() { return {"GLM-4.7", GlmTokenizer()}; }
Family Glm52() { return {"GLM-5.2", GlmTokenizer(/*has_call_tokens=*/true, kGlm52Template)}; }
Family Kimi() { return {"Kimi", KimiTokenizer()}; }
Family KimiThinking() {
  return {"Kimi-Thinking", KimiTokenizer(std::string(kKimiTemplate) + " <think></think>")};
}
Family Kimi26() { return {"Kimi-K2.6", KimiTokenizer(kKimi26Template), ""}; }

TEST(Conversation, AnAnswerThatGoesOnIsTheEndOfThePrompt) {
  const std::vector<ChatMessage> text = {{"user", "a"}, {"assistant", "b "}};
  const std::vector<ChatMessage> both = {{.role = "user", .content = "a"},
                                         {.role = "assistant", .content = "b", .thinking = "r"}};
  const std::vector<ChatMessage> thought = {{.role = "user", .content = "a"},
                                            {.role = "assistant", .thinking = "r"}};
  const ChatChoices plain = {.continues = true}, on = {.thinking = true, .continues = true},
                    off = {.thinking = false, .continues = true};
  EXPECT_EQ(R1().Render(text, plain), "<s><｜User｜>a<｜Assistant｜>b ");
  EXPECT_EQ(R1().Render(both, plain), "<s><｜User｜>a<｜Assistant｜><think>\nr</think>b");
  EXPECT_EQ(R1().Render(thought, plain), "<s><｜User｜>a<｜Assistant｜><think>\nr");
  for (const Family& family : {V31(), V32(), V4()}) {
    SCOPED_TRACE(family.name);
    const ChatChoices low = {.reasoning_effort = "low", .continues = true};  // V4 writes no text for it
    EXPECT_EQ(family.Render(text, low), "<s><｜User｜>a<｜Assistant｜><think></think>b ");
    EXPECT_EQ(family.Render(text, off), "<s><｜User｜>a<｜Assistant｜></think>b ");
    EXPECT_EQ(family.Render(both, low), "<s><｜User｜>a<｜Assistant｜><think>r</think>b");
    EXPECT_EQ(family.Render(both, off), "<s><｜User｜>a<｜Assistant｜></think>b");
    EXPECT_EQ(family.Render(thought, low), "<s><｜User｜>a<｜Assistant｜><think>r");
    EXPECT_EQ(family.Render(thought, off), "<s><｜User｜>a<｜Assistant｜></think>");
  }
  EXPECT_EQ(Glm47().Render(text, off), "[gMASK]<sop><|user|>a<|assistant|></think>b ");
  EXPECT_EQ(Glm47().Render(both, on), "[gMASK]<sop><|user|>a<|assistant|><think>r</think>b");
  EXPECT_EQ(Glm47().Render(thought, on), "[gMASK]<sop><|user|>a<|assistant|><think>r");
  EXPECT_EQ(Glm52().Render(text, off), "[gMASK]<sop><|user|>a<|assistant|><think></think>b ");
  EXPECT_THAT(Kimi().Render(both, plain), EndsWith("<|im_assistant|>assistant<|im_middle|>b"));
  EXPECT_THAT(KimiThinking().Render(both, plain),
              EndsWith("<|im_assistant|>assistant<|im_middle|><think>r</think>b"));
  EXPECT_THAT(KimiThinking().Render(text, plain), EndsWith("<|im_assistant|>assistant<|im_middle|>b "));
  const std::string kimi = "<|im_user|>user<|im_middle|>a<|im_end|><|im_assistant|>assistant<|im_middle|>";
  EXPECT_EQ(Kimi26().Render(text, plain), kimi + "<think></think>b ");
  EXPECT_EQ(Kimi26().Render(both, plain), kimi + "<think>r</think>b");
  EXPECT_EQ(Kimi26().Render(both, off), kimi + "<think></think>b");
  EXPECT_EQ(Kimi26().Render(thought, plain), kimi + "<think>r");
}

TEST(Conversation, AnAnswerAtTheEndIsClosedAndAnotherOneOpened) {
  const std::vector<ChatMessage> messages = {{"user", "a"}, {"assistant", "b"}};
  EXPECT_EQ(R1().Render(messages), "<s><｜User｜>a<｜Assistant｜>b</s><｜Assistant｜><think>\n");
  for (const Family& family : {V31(), V32(), V4()}) {
    EXPECT_EQ(family.Render(messages, {.thinking = false}),
              "<s><｜User｜>a<｜Assistant｜></think>b</s><｜Assistant｜></think>")
        << family.name;
  }
  EXPECT_EQ(Glm47().Render(messages), "[gMASK]<sop><|user|>a<|assistant|></think>b<|assistant|><think>");
  EXPECT_THAT(Kimi().Render(messages), EndsWith("b<|im_end|><|im_assistant|>assistant<|im_middle|>"));
  // An empty one is left out at the end, and is an empty answer elsewhere.
  EXPECT_EQ(R1().Render({{"user", "a"}, {"assistant", ""}}), "<s><｜User｜>a<｜Assistant｜><think>\n");
  EXPECT_EQ(R1().Render({{"user", "a"}, {"assistant", ""}, {"user", "b"}}),
            "<s><｜User｜>a<｜Assistant｜></s><｜User｜>b<｜Assistant｜><think>\n");
  // Thinking alone is an answer.
  EXPECT_EQ(Glm47().Render({{.role = "user", .content = "a"}, {.role = "assistant", .thinking = "r"}}),
            "[gMASK]<sop><|user|>a<|assistant|><think>r</think><|assistant|><think>");
}

TEST(Conversation, ASystemTextMayBeTheLastOrTheOnlyOne) {
  const std::vector<ChatMessage> alone = {{"system", "s"}}, last = {{"user", "a"}, {"system", "s"}};
  EXPECT_EQ(R1().Render(alone), "<s>s<｜Assistant｜><think>\n");
  EXPECT_EQ(R1().Render(last), "<s>s<｜User｜>a<｜Assistant｜><think>\n");
  for (const Family& family : {V31(), V32(), V4()}) {
    EXPECT_EQ(family.Render(alone, {.reasoning_effort = "low"}), "<s>s<｜Assistant｜><think>") << family.name;
  }
  EXPECT_EQ(Glm47().Render(last), "[gMASK]<sop><|user|>a<|system|>s<|assistant|><think>");
  EXPECT_THAT(Kimi().Render(last),
              EndsWith("<|im_system|>system<|im_middle|>s<|im_end|><|im_assistant|>assistant<|im_middle|>"));
}

std::vector<ChatMessage> Calls() {
  return {{.role = "user", .content = "q"},
          {.role = "assistant",
           .tool_calls = {{.id = "a", .name = "f", .arguments = "{}"},
                          {.id = "b", .name = "g", .arguments = "{}"}}},
          {.role = "user", .content = "wait"},
          {.role = "tool", .content = "of g", .tool_call_id = "b"},
          {.role = "system", .content = "s"},
          {.role = "tool", .content = "of f", .tool_call_id = "a"}};
}

TEST(Conversation, ResultsAreFoundUpToTheNextAnswer) {
  FieldNotes notes;
  const auto order = OrderOfMessages(Calls(), notes);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_THAT(order->messages, ElementsAre(0u, 1u, 5u, 3u, 2u, 4u));
  EXPECT_THAT(order->call_of, ElementsAre(kNoCall, kNoCall, 0u, 1u, kNoCall, kNoCall));
  EXPECT_TRUE(notes.empty());
  EXPECT_THAT(R1().Render(Calls()), HasSubstr("of f<｜tool▁output▁end｜>\n<｜tool▁output▁begin｜>of g"));
}

TEST(Conversation, CallsWithoutAResultAreNoted) {
  std::vector<ChatMessage> messages = Calls();
  messages.resize(4);  // g alone has a result
  FieldNotes notes;
  const std::string prompt = Kimi().Render(messages, {}, {}, &notes);
  EXPECT_EQ(notes.Header(), "messages[].tool_calls");
  // The result has its own call's id, not that of the first one.
  EXPECT_THAT(prompt, HasSubstr("## Return of functions.g:1\nof g"));
  messages.resize(2);
  FieldNotes both;
  EXPECT_THAT(V4().Render(messages, {.thinking = false}, {}, &both),
              EndsWith("</｜DSML｜tool_calls></s><｜Assistant｜></think>"));
  EXPECT_EQ(both.Header(), "messages[].tool_calls");
}

TEST(Conversation, CallsOfOneIdAreAnsweredInOrder) {
  std::vector<ChatMessage> messages = Calls();
  messages[1].tool_calls[1].id = "a";
  messages[3].tool_call_id = messages[5].tool_call_id = "a";
  FieldNotes notes;
  const auto order = OrderOfMessages(messages, notes);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_THAT(order->messages, ElementsAre(0u, 1u, 3u, 5u, 2u, 4u));
}

TEST(Conversation, ManyMessagesAndCallsTakeNoSquareOfTheirNumber) {
  constexpr int kMany = 100'000;
  std::vector<ChatMessage> messages = {{"user", "q"}, {"assistant", ""}};
  for (int i = 0; i < kMany; ++i) {
    messages[1].tool_calls.push_back({.id = std::to_string(i), .name = "f", .arguments = ""});
  }
  for (int i = kMany; i-- > 0;) {
    messages.push_back({.role = "tool", .content = "r", .tool_call_id = std::to_string(i)});
  }
  FieldNotes notes;
  const auto order = OrderOfMessages(messages, notes);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->messages[2], messages.size() - 1);
  for (const Family& family : {R1(), V31(), V32(), V4(), Glm47(), Kimi()}) {
    std::vector<ChatMessage> answers;
    for (int i = 0; i < kMany / 5; ++i) answers.push_back({i % 2 == 0 ? "user" : "assistant", "a"});
    EXPECT_GT(family.Render(answers).size(), answers.size()) << family.name;
  }
}

TEST(Conversation, PartsAreJoinedAsTheFamilyDoes) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "abc", .part_ends = {1, 1}}};
  for (const Family& family : {R1(), V31()}) EXPECT_THAT(family.Render(messages), HasSubstr("｜>a\n\nbc<"));
  for (const Family& family : {V32(), V4()}) {
    EXPECT_THAT(family.Render(messages), HasSubstr("｜>a\n\n\n\nbc<")) << family.name;
  }
  for (const Family& family : {Glm47(), Kimi()}) EXPECT_THAT(family.Render(messages), HasSubstr(">abc<"));
}

TEST(Conversation, LaterSystemTextsOfDsmlAreTheUsers) {
  const std::vector<ChatMessage> messages = {
      {"system", "p"}, {"system", "q"}, {"user", "a"}, {"assistant", "b"}, {"system", "s"}};
  EXPECT_EQ(
      V4().Render(messages, {.thinking = false}),
      "<s>p\n\nq<｜User｜>a<｜Assistant｜></think>b</s><｜User｜><system-reminder>\ns\n</system-reminder>"
      "<｜Assistant｜></think>");
  EXPECT_EQ(V32().Render(messages, {.thinking = false}), V4().Render(messages, {.thinking = false}));
  // The head is that of the conversation without the later text, so that a cached prefix stays right.
  const std::vector<ChatMessage> before(messages.begin(), messages.end() - 1);
  const std::string head = V4().Render(before, {.thinking = false});
  EXPECT_EQ(V4().Render(messages, {.thinking = false}).substr(0, head.find("b</s>")),
            head.substr(0, head.find("b</s>")));
}

TEST(Conversation, ARemindersMarkIsV4s) {
  const std::vector<ChatMessage> messages = {{"user", "a"}, {"latest_reminder", "r"}};
  Family with_mark = {"V4",
                      MakeTokenizer({"<s>", "</s>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>",
                                     "<｜latest_reminder｜>"},
                                    {{"bos_token", "<s>"}, {"eos_token", "</s>"}}),
                      "deepseek_v4"};
  EXPECT_EQ(with_mark.Render(messages, {.thinking = false}),
            "<s><｜User｜>a<｜latest_reminder｜>r<｜Assistant｜></think>");
  EXPECT_EQ(V4().Render(messages, {.thinking = false}),
            "<s><｜User｜>a\n\n<system-reminder>\nr\n</system-reminder><｜Assistant｜></think>");
  EXPECT_EQ(R1().Render(messages), "<s>r<｜User｜>a<｜Assistant｜><think>\n");
}

TEST(Conversation, V4sPromptShowsTheSchemaOfTheAnswer) {
  const ChatChoices choices = {.thinking = false, .schema = "{\"type\":\"object\",\"maximum\":1.50}"};
  EXPECT_EQ(V4().Render({{"system", "s"}, {"user", "a"}}, choices),
            "<s>s\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
            "{\"type\": \"object\", \"maximum\": 1.50}<｜User｜>a<｜Assistant｜></think>");
  EXPECT_EQ(V32().Render({{"system", "s"}, {"user", "a"}}, choices),
            "<s>s<｜User｜>a<｜Assistant｜></think>");
}

TEST(Conversation, DeferredToolsStandWhereAMessageRefersToThem) {
  const ChatTools tools = {
      .tools = {{.name = "search"}, {.name = "late", .description = "d", .deferred = true}}};
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "q"},
      {.role = "assistant", .tool_calls = {{.id = "a", .name = "search", .arguments = "{}"}}},
      {.role = "tool", .tool_call_id = "a", .tool_references = {"late"}}};
  const std::string definition = "{\"name\": \"late\", \"description\": \"d\"}";
  for (const Family& family : {R1(), V31(), V32(), V4(), Glm47(), Glm52(), Kimi()}) {
    SCOPED_TRACE(family.name);
    const std::string prompt = family.Render(messages, {}, tools);
    const size_t at = prompt.find("late");
    EXPECT_EQ(prompt.find("late", at + 1), std::string::npos) << "the head has it, too: " << prompt;
    EXPECT_THAT(prompt, HasSubstr(family.name[0] == 'G'
                                      ? "<tool_response><tools>\n" + definition + "\n</tools></tool_response>"
                                      : definition));
    // The head, and with it the cached prefix, is that of the turn before.
    const std::string before = family.Render({messages[0]}, {}, {.tools = {tools.tools[0]}});
    EXPECT_EQ(prompt.substr(0, before.find('q')), before.substr(0, before.find('q')));
  }
}

TEST(Conversation, AddedToolsStandWhereTheyAreAddedAndRemovedOnesAreNamed) {
  const ChatTool old_f = {.name = "f", .description = "old", .removed = true};
  const ChatTool new_f = {.name = "f", .description = "new", .deferred = true};
  const ChatTools tools = {.tools = {{.name = "e"}, old_f, new_f}};
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "q"},
      {.role = "system", .tool_changes = {{.name = "f", .removes = true}}},
      {.role = "user", .content = "r"},
      {.role = "system",
       .content = "s\n\nt",
       .tool_changes = {{.name = "f", .at = 0},
                        {.name = "f", .definition = new_f, .at = 1},
                        {.name = "f", .at = 4}}},
      {.role = "user", .content = "u"}};
  const std::string old_text = "{\"name\": \"f\", \"description\": \"old\"}";
  const std::string new_text = "{\"name\": \"f\", \"description\": \"new\"}";
  const std::string removed = "The tool f can no longer be called.";
  for (const Family& family : {R1(), V31(), V32(), V4(), Glm47(), Glm52(), Kimi()}) {
    SCOPED_TRACE(family.name);
    const auto wrapped = [&family](const std::string& text) {
      return family.name[0] == 'G' ? "<tools>\n" + text + "\n</tools>" : text;
    };
    const std::string prompt = family.Render(messages, {}, tools);
    EXPECT_THAT(prompt, HasSubstr(removed));
    EXPECT_THAT(prompt, HasSubstr(wrapped(old_text) + "\n\ns\n\n" + wrapped(new_text) + "\n\nt\n\n" +
                                  wrapped(new_text)));
    // The head, and with it the cached prefix, is that of the turn before.
    const std::string before =
        family.Render({messages[0]}, {}, {.tools = {{.name = "e"}, {.name = "f", .description = "old"}}});
    const size_t head = before.find(">q") + 2;
    EXPECT_EQ(prompt.substr(0, head), before.substr(0, head));
  }
  EXPECT_THAT(V4().Render(messages, {.thinking = false}, tools),
              HasSubstr("<｜User｜>q\n\n<system-reminder>\n" + removed + "\n</system-reminder>\n\nr\n\n"));
}

TEST(Conversation, WhereAllToolsAreAddedTheHeadSaysHowTheyAreCalled) {
  const ChatTool added = {.name = "f", .description = "d", .deferred = true};
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "q"},
      {.role = "system", .tool_changes = {{.name = "f", .definition = added}}}};
  for (const Family& family : {V31(), V32(), V4(), Glm47(), Glm52(), Kimi()}) {
    SCOPED_TRACE(family.name);
    const std::string prompt = family.Render(messages, {}, {.tools = {added}});
    const std::string declared =
        family.Render({messages[0]}, {}, {.tools = {{.name = "f", .description = "d"}}});
    const size_t head = declared.find(">q") + 2;
    EXPECT_EQ(prompt.substr(0, head), declared.substr(0, head));
  }
}

}  // namespace
}  // namespace foredraft
