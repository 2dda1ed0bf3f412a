// GLM-4.7.
// clang-format off
//
//   [gMASK]<sop> [<|system|> tools] (<|system|> text | <|user|> text | <|assistant|> </think> text calls |
//   <|observation|> (<tool_response> text </tool_response>)...)... <|assistant|> <think> or </think>
// clang-format on
//
// Answers behind the last user's message keep their thinking, in <think> and </think>.

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/text/families/chat_family.h"
#include "server/text/tool_json.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

constexpr char kSystem[] = "<|system|>", kUser[] = "<|user|>", kAssistant[] = "<|assistant|>";
constexpr char kObservation[] = "<|observation|>";
constexpr char kThink[] = "<think>", kEndThink[] = "</think>";
constexpr char kCall[] = "<tool_call>", kCallEnd[] = "</tool_call>";
constexpr char kKey[] = "<arg_key>", kKeyEnd[] = "</arg_key>";
constexpr char kValue[] = "<arg_value>", kValueEnd[] = "</arg_value>";

absl::StatusOr<ChatSetup> Read(const Tokenizer& tokenizer) {
  ChatSetup setup;
  for (const char* content : {"[gMASK]", "<sop>"}) {
    ASSIGN_OR_RETURN(const int32_t id, FindMarkup(tokenizer, content));
    setup.opening.push_back(id);
  }
  for (const char* content : {kSystem, kAssistant, kThink, kEndThink}) {
    RETURN_IF_ERROR(FindMarkup(tokenizer, content).status());
  }
  for (const char* content : {kUser, kObservation}) {
    ASSIGN_OR_RETURN(const int32_t id, FindMarkup(tokenizer, content));
    setup.stop_ids.push_back(id);
  }
  setup.opens_thinking = true;
  return setup;
}

void DeclareTools(const Conversation& chat, PromptWriter& prompt) {
  prompt.Markup(absl::StrCat(
      kSystem,
      "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
      "with function signatures within <tools></tools> XML tags:\n<tools>\n"));
  for (const ChatTool& tool : chat.tools) {
    prompt.Content("chat.tools", ToolJson(tool, JsonSpacing::kSpaced));
    prompt.Markup("\n");
  }
  prompt.Markup(absl::StrCat(
      "</tools>\n\nFor each function call, output the function name and arguments within the following XML "
      "format:\n",
      kCall, "{function-name}", kKey, "{arg-key-1}", kKeyEnd, kValue, "{arg-value-1}", kValueEnd, kKey,
      "{arg-key-2}", kKeyEnd, kValue, "{arg-value-2}", kValueEnd, "...", kCallEnd));
}

void WriteAnswer(const Conversation& chat, size_t i, bool keeps_thinking, PromptWriter& prompt) {
  const ChatMessage& message = chat.messages[i];
  prompt.Markup(kAssistant);
  const std::string_view thinking = StripWhiteSpace(ThinkingOf(message));
  if (keeps_thinking && !thinking.empty()) {
    prompt.Markup(kThink);
    prompt.Content(chat.Field(i, "thinking"), thinking);
  }
  prompt.Markup(kEndThink);
  prompt.Content(chat.Field(i, "content"), StripWhiteSpace(AnswerOf(message)));
  const std::string field = chat.Field(i, "tool_calls");
  for (const ToolCall& call : message.tool_calls) {
    prompt.Markup(kCall);
    prompt.Content(field, call.name);
    for (const CallArgument& argument : ArgumentsOf(call)) {
      prompt.Markup(kKey);
      prompt.Content(field, argument.name);
      prompt.Markup(absl::StrCat(kKeyEnd, kValue));
      prompt.Content(field, argument.value);
      prompt.Markup(kValueEnd);
    }
    prompt.Markup(kCallEnd);
  }
}

void Render(const Conversation& chat, const ChatSetup&, PromptWriter& prompt) {
  const size_t last_user = chat.LastUser();
  if (!chat.tools.empty()) DeclareTools(chat, prompt);
  for (size_t i = 0; i < chat.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    if (message.role == "assistant") {
      WriteAnswer(chat, i, last_user == chat.size() || i > last_user, prompt);
    } else if (message.role == "tool") {
      if (chat.role_before(i) != "tool") prompt.Markup(kObservation);
      prompt.Markup("<tool_response>");
      prompt.Content(chat.Field(i, "content"), message.content);
      prompt.Markup("</tool_response>");
    } else {
      prompt.Markup(message.role == "system" ? kSystem : kUser);
      prompt.Content(chat.Field(i, "content"), message.content);
    }
  }
  prompt.Markup(absl::StrCat(kAssistant, chat.thinks ? kThink : kEndThink));
}

CallSyntax Calls() {
  return {.arguments = CallSyntax::Arguments::kTagged,
          .call = kCall,
          .call_end = kCallEnd,
          .key = kKey,
          .key_end = kKeyEnd,
          .value = kValue,
          .value_end = kValueEnd};
}

}  // namespace

const ChatFamily kGlm47Chat = {.read = Read, .render = Render, .calls = Calls};

}  // namespace foredraft
