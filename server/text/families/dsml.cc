#include "server/text/families/dsml.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/text/tool_json.h"

namespace foredraft::dsml {
namespace {

constexpr char kEndOfSentence[] = "<｜end▁of▁sentence｜>";
constexpr char kDsml[] = "｜DSML｜";

void WriteCalls(const Conversation& chat, size_t i, const char* block, PromptWriter& prompt) {
  const std::vector<ToolCall>& calls = chat.messages[i].tool_calls;
  if (calls.empty()) return;
  const std::string field = chat.Field(i, "tool_calls");
  prompt.Markup(absl::StrCat("\n\n", Tag(block), ">\n"));
  for (const ToolCall& call : calls) {
    prompt.Markup(absl::StrCat(Tag("invoke"), " name=\""));
    prompt.Content(field, call.name);
    prompt.Markup("\">\n");
    for (const CallArgument& argument : ArgumentsOf(call)) {
      prompt.Markup(absl::StrCat(Tag("parameter"), " name=\""));
      prompt.Content(field, argument.name);
      prompt.Markup(argument.is_string ? "\" string=\"true\">" : "\" string=\"false\">");
      prompt.Content(field, argument.value);
      prompt.Markup(absl::StrCat(EndTag("parameter"), "\n"));
    }
    // For a call without parameters the encoders write an empty line.
    if (ArgumentsOf(call).empty()) prompt.Markup("\n");
    prompt.Markup(absl::StrCat(EndTag("invoke"), "\n"));
  }
  prompt.Markup(EndTag(block));
}

}  // namespace

absl::StatusOr<ChatSetup> Read(const Tokenizer& tokenizer) {
  ChatSetup setup;
  if (tokenizer.bos_id() >= 0) setup.opening = {tokenizer.bos_id()};
  for (const char* content : {kUser, kAssistant}) RETURN_IF_ERROR(FindMarkup(tokenizer, content).status());
  setup.end_of_answer = tokenizer.eos_id();
  if (setup.end_of_answer < 0) {
    ASSIGN_OR_RETURN(setup.end_of_answer, FindMarkup(tokenizer, kEndOfSentence));
  }
  for (const char* content : {kThink, kEndThink}) RETURN_IF_ERROR(FindMarkup(tokenizer, content).status());
  setup.stop_ids = {setup.end_of_answer};
  setup.part_join = "\n\n";
  setup.reminds_of_system = true;
  return setup;
}

std::string Tag(const char* name) { return absl::StrCat("<", kDsml, name); }
std::string EndTag(const char* name) { return absl::StrCat("</", kDsml, name, ">"); }

std::string Example(const char* block, const char* kind) {
  const std::string parameter =
      absl::StrCat(Tag("parameter"), " name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE",
                   EndTag("parameter"), "\n...\n");
  return absl::StrCat(Tag(block), ">\n", Tag("invoke"), " name=\"$", kind, "_NAME\">\n", parameter,
                      EndTag("invoke"), "\n", Tag("invoke"), " name=\"$", kind, "_NAME2\">\n...\n",
                      EndTag("invoke"), "\n", EndTag(block), "\n\n");
}

void WriteSchemas(const Conversation& chat, PromptWriter& prompt) {
  for (const ChatTool& tool : chat.tools) {
    prompt.Content("chat.tools", FunctionJson(tool, JsonSpacing::kSpaced));
    prompt.Markup("\n");
  }
}

size_t WriteLeadingSystem(const Conversation& chat, PromptWriter& prompt) {
  size_t i = 0;
  for (; i < chat.size() && chat.role(i) == "system"; ++i) {
    if (i > 0) prompt.Markup("\n\n");
    prompt.Content(chat.Field(i, "content"), chat.messages[i].content);
  }
  return i;
}

void WriteAnswer(const Conversation& chat, size_t i, bool keeps_thinking, const char* block,
                 PromptWriter& prompt) {
  const ChatMessage& message = chat.messages[i];
  if (keeps_thinking) {
    prompt.Content(chat.Field(i, "thinking"), ThinkingOf(message));
    prompt.Markup(kEndThink);
  }
  prompt.Content(chat.Field(i, "content"), AnswerOf(message));
  WriteCalls(chat, i, block, prompt);
}

void Continue(const Conversation& chat, bool opened, PromptWriter& prompt) {
  if (!opened) prompt.Markup(kAssistant);
  WriteContinued(chat,
                 {.opening = kThink,
                  .closed = chat.thinks ? absl::StrCat(kThink, kEndThink) : kEndThink,
                  .keeps_thinking = chat.thinks},
                 prompt);
}

CallSyntax Calls(const char* block) {
  return {.arguments = CallSyntax::Arguments::kDsml,
          .begin = absl::StrCat(Tag(block), ">"),
          .end = EndTag(block),
          .call = absl::StrCat(Tag("invoke"), " name=\""),
          .name_end = "\">",
          .call_end = EndTag("invoke"),
          .key = absl::StrCat(Tag("parameter"), " name=\""),
          .key_end = "\" string=\"",
          .value = "\">",
          .value_end = EndTag("parameter"),
          .own_lines = true,
          .spacing = {.before_begin = "\n\n",
                      .behind_begin = "\n",
                      .behind_name = "\n",
                      .between_calls = "\n",
                      .before_end = "\n"}};
}

}  // namespace foredraft::dsml
