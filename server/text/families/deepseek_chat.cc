// DeepSeek-V3-0324, R1 (and R1-0528) and V3.1.
// clang-format off
//
//   R1, V3   BOS system-text (<｜User｜> text | <｜Assistant｜> text EOS)... <｜Assistant｜> [<think>\n]
//   V3.1     BOS system-text (<｜User｜> text | <｜Assistant｜> </think> text EOS)... <｜Assistant｜> <think> or </think>
// clang-format on
//
// Calls follow the text of their answer, before EOS. Their results have no role in front, and the answer to
// them has no <｜Assistant｜>. The checkpoints' templates of R1 and V3 say nothing about declaring tools: the
// texts here are those of vLLM's examples/tool_chat_template_deepseekr1.jinja and _deepseekv3.jinja, without
// the white space that only the indentation of the latter adds. V3.1's text is its model card's.

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/text/families/chat_family.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

constexpr char kUser[] = "<｜User｜>", kAssistant[] = "<｜Assistant｜>";
constexpr char kEndOfSentence[] = "<｜end▁of▁sentence｜>";
constexpr char kThink[] = "<think>", kEndThink[] = "</think>";
constexpr char kCallsBegin[] = "<｜tool▁calls▁begin｜>", kCallsEnd[] = "<｜tool▁calls▁end｜>";
constexpr char kCallBegin[] = "<｜tool▁call▁begin｜>", kCallEnd[] = "<｜tool▁call▁end｜>";
constexpr char kSeparator[] = "<｜tool▁sep｜>";
constexpr char kOutputsBegin[] = "<｜tool▁outputs▁begin｜>", kOutputsEnd[] = "<｜tool▁outputs▁end｜>";
constexpr char kOutputBegin[] = "<｜tool▁output▁begin｜>", kOutputEnd[] = "<｜tool▁output▁end｜>";

// What R1's and V3's templates put after their last marker: "<think>", "<think>\n" or nothing.
std::string OpeningOfThinking(const Tokenizer& tokenizer) {
  if (!tokenizer.chat_template().has_value()) {
    return tokenizer.AddedTokenId(kThink).has_value() ? absl::StrCat(kThink, "\n") : "";
  }
  const std::string opening = absl::StrCat(kAssistant, kThink);
  const std::string_view source = *tokenizer.chat_template();
  const size_t at = source.find(opening);
  if (at == std::string_view::npos) return "";
  // In a Jinja string the newline is written as the escape \n.
  const std::string_view rest = source.substr(at + opening.size());
  const bool newline = rest.substr(0, 1) == "\n" || rest.substr(0, 2) == "\\n";
  return absl::StrCat(kThink, newline ? "\n" : "");
}

absl::StatusOr<ChatSetup> ReadCommon(const Tokenizer& tokenizer) {
  ChatSetup setup;
  if (tokenizer.bos_id() >= 0) setup.opening = {tokenizer.bos_id()};
  for (const char* content : {kUser, kAssistant}) RETURN_IF_ERROR(FindMarkup(tokenizer, content).status());
  setup.end_of_answer = tokenizer.eos_id();
  if (setup.end_of_answer < 0) {
    ASSIGN_OR_RETURN(setup.end_of_answer, FindMarkup(tokenizer, kEndOfSentence));
  }
  setup.stop_ids = {setup.end_of_answer};
  setup.moves_system = true;
  return setup;
}

absl::StatusOr<ChatSetup> ReadR1(const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(ChatSetup setup, ReadCommon(tokenizer));
  setup.has_choice = false;
  setup.has_thinking = tokenizer.AddedTokenId(kThink).has_value();
  setup.thinking_opening = OpeningOfThinking(tokenizer);
  setup.opens_thinking = !setup.thinking_opening.empty();
  return setup;
}

absl::StatusOr<ChatSetup> ReadV31(const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(ChatSetup setup, ReadCommon(tokenizer));
  for (const char* content : {kThink, kEndThink}) RETURN_IF_ERROR(FindMarkup(tokenizer, content).status());
  setup.calls_while_thinking = false;
  return setup;
}

void WriteSystem(const Conversation& chat, PromptWriter& prompt) {
  bool first = true;
  for (size_t i = 0; i < chat.size(); ++i) {
    if (chat.role(i) != "system") continue;
    if (!first) prompt.Markup("\n\n");
    prompt.Content(chat.Field(i, "content"), chat.messages[i].content);
    first = false;
  }
}

void DeclareR1Tools(const Conversation& chat, PromptWriter& prompt) {
  prompt.Markup(absl::StrCat(
      "\n\nYou are a helpful assistant with tool calling capabilities. When a tool call is needed, you MUST "
      "use the following format to issue the call:\n",
      kCallsBegin, kCallBegin, "function", kSeparator,
      "FUNCTION_NAME\n```json\n{\"param1\": \"value1\", \"param2\": \"value2\"}\n```", kCallEnd, kCallsEnd,
      "\n\nMake sure the JSON is valid.## Tools\n\n### Function\n\nYou have the following functions "
      "available:\n\n"));
  for (const ChatTool& tool : chat.tools) {
    prompt.Markup("\n```json\n");
    prompt.Content("chat.tools", ToolJson(tool, JsonSpacing::kSpaced));
    prompt.Markup("\n```\n");
  }
}

void DeclareV3Tools(const Conversation& chat, PromptWriter& prompt) {
  prompt.Markup(
      "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
      "with function signatures within <tools></tools> XML tags:\n<tools>");
  for (const ChatTool& tool : chat.tools) {
    prompt.Markup("\n");
    prompt.Content("chat.tools", ToolJson(tool, JsonSpacing::kSpaced));
  }
  prompt.Markup(
      absl::StrCat("\n</tools>\n\nFor function call returns, you should first print ", kCallsBegin,
                   "For each function call, you should return object like:\n", kCallBegin, "function",
                   kSeparator, "<function_name>\n```json\n<function_arguments_in_json_format>\n```", kCallEnd,
                   "At the end of function call returns, you should print ", kCallsEnd, kEndOfSentence));
}

void DeclareV31Tools(const Conversation& chat, PromptWriter& prompt) {
  prompt.Markup("\n\n## Tools\nYou have access to the following tools:\n");
  for (const ChatTool& tool : chat.tools) {
    prompt.Markup("\n### ");
    prompt.Content("chat.tools", tool.name);
    prompt.Markup("\nDescription: ");
    prompt.Content("chat.tools", tool.description);
    prompt.Markup("\n\nParameters: ");
    prompt.Content("chat.tools",
                   tool.parameters.empty() ? "{}" : SpacedJson(tool.parameters, JsonSpacing::kSpaced));
    prompt.Markup("\n");
  }
  prompt.Markup(absl::StrCat(
      "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n", kCallsBegin, kCallBegin,
      "tool_call_name", kSeparator, "tool_call_arguments", kCallEnd, "{{additional_tool_calls}}", kCallsEnd,
      "\n\nWhere:\n\n- `tool_call_name` must be an exact match to one of the available tools\n- "
      "`tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n- For "
      "multiple tool calls, chain them directly without separators or spaces\n"));
}

void WriteCalls(const Conversation& chat, size_t i, bool v31, PromptWriter& prompt) {
  const std::vector<ToolCall>& calls = chat.messages[i].tool_calls;
  if (calls.empty()) return;
  const std::string field = chat.Field(i, "tool_calls");
  prompt.Markup(kCallsBegin);
  for (const ToolCall& call : calls) {
    if (!v31 && &call != &calls.front()) prompt.Markup("\n");
    prompt.Markup(v31 ? kCallBegin : absl::StrCat(kCallBegin, "function", kSeparator));
    prompt.Content(field, call.name);
    prompt.Markup(v31 ? kSeparator : "\n```json\n");
    const std::string arguments = call.arguments.empty() ? "{}" : call.arguments;
    prompt.Content(field, v31 ? arguments : SpacedJson(arguments, JsonSpacing::kSpaced));
    prompt.Markup(v31 ? kCallEnd : absl::StrCat("\n```", kCallEnd));
  }
  prompt.Markup(kCallsEnd);
}

void WriteResult(const Conversation& chat, size_t i, bool v31, PromptWriter& prompt) {
  const bool is_first = chat.role_before(i) != "tool";
  const bool is_last = i + 1 == chat.size() || chat.role(i + 1) != "tool";
  if (!v31) prompt.Markup(is_first ? kOutputsBegin : "\n");
  prompt.Markup(kOutputBegin);
  prompt.Content(chat.Field(i, "content"), chat.messages[i].content);
  prompt.Markup(kOutputEnd);
  if (!v31 && is_last) prompt.Markup(kOutputsEnd);
}

// The role of the message before, skipping system texts, which stand in front of the conversation.
std::string_view RoleBefore(const Conversation& chat, size_t i) {
  while (i > 0 && chat.role(i - 1) == "system") --i;
  return chat.role_before(i);
}

void RenderR1(const Conversation& chat, const ChatSetup& setup, PromptWriter& prompt) {
  WriteSystem(chat, prompt);
  if (!chat.tools.empty()) (setup.has_thinking ? DeclareR1Tools : DeclareV3Tools)(chat, prompt);
  for (size_t i = 0; i < chat.size(); ++i) {
    if (chat.role(i) == "user") {
      prompt.Markup(kUser);
      prompt.Content(chat.Field(i, "content"), chat.messages[i].content);
    } else if (chat.role(i) == "assistant") {
      if (RoleBefore(chat, i) != "tool") prompt.Markup(kAssistant);
      if (chat.is_continued(i)) {
        return WriteContinued(chat, {.opening = setup.thinking_opening, .keeps_thinking = chat.thinks},
                              prompt);
      }
      prompt.Content(chat.Field(i, "content"), AnswerOf(chat.messages[i]));
      WriteCalls(chat, i, /*v31=*/false, prompt);
      prompt.Mark(setup.end_of_answer);
    } else if (chat.role(i) == "tool") {
      WriteResult(chat, i, /*v31=*/false, prompt);
    }
  }
  if (RoleBefore(chat, chat.size()) == "tool") return;
  prompt.Markup(kAssistant);
  prompt.Markup(setup.thinking_opening);
}

void RenderV31(const Conversation& chat, const ChatSetup& setup, PromptWriter& prompt) {
  WriteSystem(chat, prompt);
  if (!chat.tools.empty()) DeclareV31Tools(chat, prompt);
  bool after_user = false;
  for (size_t i = 0; i < chat.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    if (message.role == "system") continue;
    if (message.role == "user") {
      prompt.Markup(kUser);
      prompt.Content(chat.Field(i, "content"), message.content);
    } else if (message.role == "assistant") {
      if (chat.is_continued(i)) {
        if (RoleBefore(chat, i) != "tool") prompt.Markup(kAssistant);
        return WriteContinued(chat,
                              {.opening = kThink,
                               .closed = chat.thinks ? absl::StrCat(kThink, kEndThink) : kEndThink,
                               .keeps_thinking = chat.thinks},
                              prompt);
      }
      // An answer is opened only after a user's message, and cut at its first </think>.
      if (after_user) prompt.Markup(absl::StrCat(kAssistant, kEndThink));
      const std::string_view content = message.content;
      const size_t end = content.find(kEndThink);
      prompt.Content(
          chat.Field(i, "content"),
          end == std::string_view::npos ? content : content.substr(end + std::string_view(kEndThink).size()));
      WriteCalls(chat, i, /*v31=*/true, prompt);
      prompt.Mark(setup.end_of_answer);
    } else {
      WriteResult(chat, i, /*v31=*/true, prompt);
    }
    after_user = message.role == "user";
  }
  if (RoleBefore(chat, chat.size()) == "tool") return;
  prompt.Markup(absl::StrCat(kAssistant, chat.thinks ? kThink : kEndThink));
}

CallSyntax R1Calls() {
  return {.arguments = CallSyntax::Arguments::kJson,
          .begin = kCallsBegin,
          .end = kCallsEnd,
          .call = absl::StrCat(kCallBegin, "function", kSeparator),
          .name_end = "\n```json\n",
          .call_end = kCallEnd,
          .fenced = true,
          .spacing = {.before_call_end = "\n```", .between_calls = "\n"}};
}

CallSyntax V31Calls() {
  return {.arguments = CallSyntax::Arguments::kJson,
          .begin = kCallsBegin,
          .end = kCallsEnd,
          .call = kCallBegin,
          .name_end = kSeparator,
          .call_end = kCallEnd};
}

}  // namespace

const ChatFamily kDeepseekR1Chat = {.read = ReadR1, .render = RenderR1, .calls = R1Calls};
const ChatFamily kDeepseekV31Chat = {.read = ReadV31, .render = RenderV31, .calls = V31Calls};

}  // namespace foredraft
