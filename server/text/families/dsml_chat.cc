// DeepSeek-V3.2 and V4, which have an encoder in Python instead of a template (encoding_dsv32.py,
// encoding_dsv4.py beside their checkpoints), and write calls in DSML.
// clang-format off
//
//   V3.2  BOS (text | <｜User｜> text <｜Assistant｜> OPENING | THINKING text EOS | results OPENING)...
//   V4    BOS (text | <｜User｜> text <｜Assistant｜> OPENING | THINKING text EOS)...
// clang-format on
//
// OPENING is <think> or </think>: with thinking, behind the last user's message and what follows it. THINKING
// is a past answer's, with </think>, where its opening was <think>. V4 folds results into the user's turn,
// where messages that follow each other have an empty line between them, and keeps all thinking when there
// are tools. System texts stay where they are; the tools are behind the first message's, if that is one.

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/text/families/chat_family.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

constexpr char kUser[] = "<｜User｜>", kAssistant[] = "<｜Assistant｜>";
constexpr char kEndOfSentence[] = "<｜end▁of▁sentence｜>";
constexpr char kThink[] = "<think>", kEndThink[] = "</think>";
constexpr char kDsml[] = "｜DSML｜";

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
  return setup;
}

// The text between the angle brackets of a DSML tag: "｜DSML｜invoke", "/｜DSML｜invoke".
std::string Tag(const char* name) { return absl::StrCat("<", kDsml, name); }
std::string EndTag(const char* name) { return absl::StrCat("</", kDsml, name, ">"); }

// An example of calls in the block `name`, as both encoders describe it.
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

void DeclareV32Tools(const Conversation& chat, PromptWriter& prompt) {
  prompt.Markup(absl::StrCat(
      "\n\n## Tools\n\nYou have access to a set of tools you can use to answer the user's question.\nYou can "
      "invoke functions by writing a \"",
      Tag("function_calls"), ">\" block like the following as part of your reply to the user:\n",
      Example("function_calls", "FUNCTION"),
      "String and scalar parameters should be specified as is without any escaping or quotes, while lists "
      "and objects should use JSON format. The \"string\" attribute should be set to \"true\" for string "
      "type parameters and \"false\" for other types (numbers, booleans, arrays, objects).\n\nIf the "
      "thinking_mode is enabled, then after function results you should strongly consider outputting a "
      "thinking block. Here is an example:\n\n",
      Tag("function_calls"), ">\n...\n", EndTag("function_calls"),
      "\n\n<function_results>\n...\n</function_results>\n\n", kThink, "...thinking about results", kEndThink,
      "\n\nHere are the functions available in JSONSchema format:\n<functions>\n"));
  WriteSchemas(chat, prompt);
  prompt.Markup("</functions>\n");
}

void DeclareV4Tools(const Conversation& chat, PromptWriter& prompt) {
  prompt.Markup(absl::StrCat(
      "\n\n## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke "
      "tools by writing a \"",
      Tag("tool_calls"), ">\" block like the following:\n\n", Example("tool_calls", "TOOL"),
      "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
      "booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\nIf "
      "thinking_mode is enabled (triggered by ",
      kThink, "), you MUST output your complete reasoning inside ", kThink, "...", kEndThink,
      " BEFORE any tool calls or final response.\n\nOtherwise, output directly after ", kEndThink,
      " with tool calls or final response.\n\n### Available Tool Schemas\n\n"));
  WriteSchemas(chat, prompt);
  prompt.Markup(
      "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n");
}

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
    // The encoders join no parameters to an empty line.
    if (ArgumentsOf(call).empty()) prompt.Markup("\n");
    prompt.Markup(absl::StrCat(EndTag("invoke"), "\n"));
  }
  prompt.Markup(EndTag(block));
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

// `opened`: whether the turn of the answer that goes on is open already.
void Continue(const Conversation& chat, bool opened, PromptWriter& prompt) {
  if (!opened) prompt.Markup(kAssistant);
  WriteContinued(chat,
                 {.opening = kThink,
                  .closed = chat.thinks ? absl::StrCat(kThink, kEndThink) : kEndThink,
                  .keeps_thinking = chat.thinks},
                 prompt);
}

void RenderV32(const Conversation& chat, const ChatSetup& setup, PromptWriter& prompt) {
  const size_t last_user = chat.LastUser();
  const auto opening = [&](size_t i, bool behind_results) {
    const bool thinks =
        chat.thinks && (behind_results ? last_user == chat.size() || i >= last_user : i == last_user);
    return thinks ? kThink : kEndThink;
  };
  const auto continues_next = [&chat](size_t i) { return chat.continues && i + 2 == chat.size(); };
  if (!chat.tools.empty() && chat.role(0) != "system") DeclareV32Tools(chat, prompt);
  for (size_t i = 0; i < chat.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    if (message.role == "system") {
      prompt.Content(chat.Field(i, "content"), message.content);
      if (i == 0 && !chat.tools.empty()) DeclareV32Tools(chat, prompt);
    } else if (message.role == "user") {
      prompt.Markup(kUser);
      prompt.Content(chat.Field(i, "content"), message.content);
      prompt.Markup(kAssistant);
      if (!continues_next(i)) prompt.Markup(opening(i, /*behind_results=*/false));
    } else if (chat.is_continued(i)) {
      return Continue(chat, chat.role_before(i) == "user" || chat.role_before(i) == "tool", prompt);
    } else if (message.role == "assistant") {
      const bool keeps = chat.thinks && (last_user == chat.size() || i > last_user);
      WriteAnswer(chat, i, keeps, "function_calls", prompt);
      prompt.Mark(setup.end_of_answer);
    } else {
      if (chat.role_before(i) != "tool") prompt.Markup("\n\n<function_results>");
      prompt.Markup("\n<result>");
      prompt.Content(chat.Field(i, "content"), message.content);
      prompt.Markup("</result>");
      if (i + 1 < chat.size() && chat.role(i + 1) == "tool") continue;
      prompt.Markup("\n</function_results>\n\n");
      if (!continues_next(i)) prompt.Markup(opening(i, /*behind_results=*/true));
    }
  }
  // The encoder opens an answer behind a user's message and results alone.
  const std::string& last = chat.messages.back().role;
  if (last == "user" || last == "tool") return;
  prompt.Markup(absl::StrCat(kAssistant, chat.thinks ? kThink : kEndThink));
}

// Users' messages and results that follow each other are one turn.
bool IsUsersTurn(std::string_view role) { return role == "user" || role == "tool"; }

void RenderV4(const Conversation& chat, const ChatSetup& setup, PromptWriter& prompt) {
  const bool keeps_thinking = chat.thinks && !chat.tools.empty();
  if (!chat.tools.empty() && chat.role(0) != "system") DeclareV4Tools(chat, prompt);
  for (size_t i = 0; i < chat.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    if (message.role == "system") {
      prompt.Content(chat.Field(i, "content"), message.content);
      if (i == 0 && !chat.tools.empty()) DeclareV4Tools(chat, prompt);
    } else if (chat.is_continued(i)) {
      return Continue(chat, /*opened=*/false, prompt);
    } else if (message.role == "assistant") {
      if (IsUsersTurn(chat.role_before(i))) {
        prompt.Markup(absl::StrCat(kAssistant, keeps_thinking ? kThink : kEndThink));
      }
      WriteAnswer(chat, i, keeps_thinking, "tool_calls", prompt);
      prompt.Mark(setup.end_of_answer);
    } else {
      prompt.Markup(IsUsersTurn(chat.role_before(i)) ? "\n\n" : kUser);
      if (message.role == "tool") prompt.Markup("<tool_result>");
      prompt.Content(chat.Field(i, "content"), message.content);
      if (message.role == "tool") prompt.Markup("</tool_result>");
    }
  }
  prompt.Markup(absl::StrCat(kAssistant, chat.thinks ? kThink : kEndThink));
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

}  // namespace

const ChatFamily kDeepseekV32Chat = {
    .read = Read, .render = RenderV32, .calls = [] { return Calls("function_calls"); }};
const ChatFamily kDeepseekV4Chat = {
    .read = Read, .render = RenderV4, .calls = [] { return Calls("tool_calls"); }};

}  // namespace foredraft
