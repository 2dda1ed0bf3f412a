// GLM from 4.7 on.
// clang-format off
//
//   4.7, 5, 5.1  [gMASK]<sop> [<|system|> tools] (<|system|> text | <|user|> text | <|assistant|> </think> text calls |
//                <|observation|> (<tool_response> text </tool_response>)...)... <|assistant|> <think> or </think>
//   5.2, 5.3     [gMASK]<sop> [<|system|>Reasoning Effort: WORD] [<|system|> tools] (... <|assistant|> <think></think>
//                text calls ...)... <|assistant|> <think> or <think></think>
// clang-format on
//
// Answers after the last user's message keep their thinking, in <think> and </think>; in 5.3 all answers do.
// Before an answer without thinking there is no effort. 5.3 always thinks.

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
constexpr char kEffort[] = "Reasoning Effort: ";
constexpr char kCall[] = "<tool_call>", kCallEnd[] = "</tool_call>";
constexpr char kKey[] = "<arg_key>", kKeyEnd[] = "</arg_key>";
constexpr char kValue[] = "<arg_value>", kValueEnd[] = "</arg_value>";

// Reads how the template differs from others, each difference by the piece of source that makes it.
// RecognizeTemplate has checked that the template is one of GLM's.
void ReadDialect(std::string_view source, ChatSetup& setup) {
  const auto has = [&](std::string_view piece) { return source.find(piece) != std::string_view::npos; };
  setup.glm = {.bare_functions = has("tool['function']") || has("tool.function"),
               .empty_thinking = has("<think></think>"),
               .strips_thinking = has("reasoning_content.strip()"),
               .keeps_past_thinking = has("if clear_thinking is defined else false")};
  setup.has_choice = has("enable_thinking");
  setup.has_clear_thinking = has("clear_thinking");
  setup.part_join = "";
  setup.references_begin = "<tools>\n";
  setup.references_end = "\n</tools>";
  if (!has(kEffort)) return;
  // The words that the templates do not know have these meanings in Z.ai's own API.
  const char* const low = has("'low'") ? "Low" : "High";
  setup.efforts = {{"minimal", low}, {"low", low},   {"medium", "High"}, {"high", "High"},
                   {"xhigh", "Max"}, {"max", "Max"}, {"ultra", "Max"}};
  setup.default_effort = "Max";
}

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
  ReadDialect(tokenizer.chat_template().value_or(""), setup);
  return setup;
}

void DeclareTools(const Conversation& chat, const GlmDialect& dialect, PromptWriter& prompt) {
  prompt.Markup(absl::StrCat(
      kSystem,
      "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
      "with function signatures within <tools></tools> XML tags:\n<tools>\n"));
  for (const ChatTool& tool : chat.tools) {
    prompt.Content("chat.tools", dialect.bare_functions
                                     ? FunctionJson(tool, JsonSpacing::kSpaced, /*shows_strict=*/false)
                                     : ToolJson(tool, JsonSpacing::kSpaced));
    prompt.Markup("\n");
  }
  prompt.Markup(absl::StrCat(
      "</tools>\n\nFor each function call, output the function name and arguments within the following XML "
      "format:\n",
      kCall, "{function-name}", kKey, "{arg-key-1}", kKeyEnd, kValue, "{arg-value-1}", kValueEnd, kKey,
      "{arg-key-2}", kKeyEnd, kValue, "{arg-value-2}", kValueEnd, "...", kCallEnd));
}

// `keeps_thinking`: the answer is after the last user's message, or all answers keep their thinking.
void WriteAnswer(const Conversation& chat, size_t i, bool keeps_thinking, const GlmDialect& dialect,
                 PromptWriter& prompt) {
  const ChatMessage& message = chat.messages[i];
  prompt.Markup(kAssistant);
  std::string_view thinking = keeps_thinking ? ThinkingOf(message) : "";
  if (dialect.strips_thinking) thinking = StripWhiteSpace(thinking);
  if (!thinking.empty() || dialect.empty_thinking) prompt.Markup(kThink);
  prompt.Content(chat.Field(i, "thinking"), thinking);
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

void Render(const Conversation& chat, const ChatSetup& setup, PromptWriter& prompt) {
  if (!chat.effort.empty()) prompt.Markup(absl::StrCat(kSystem, kEffort, chat.effort));
  if (!chat.tools.empty()) DeclareTools(chat, setup.glm, prompt);
  const bool keeps_all = chat.clear_thinking.has_value() && setup.has_clear_thinking
                             ? !*chat.clear_thinking
                             : setup.glm.keeps_past_thinking;
  const size_t last_user = chat.LastUser();
  for (size_t i = 0; i < chat.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    if (chat.is_continued(i)) {
      prompt.Markup(kAssistant);
      return WriteContinued(chat,
                            {.opening = kThink,
                             .closed = setup.glm.empty_thinking ? absl::StrCat(kThink, kEndThink) : kEndThink,
                             .keeps_thinking = chat.thinks},
                            prompt);
    }
    if (message.role == "assistant") {
      WriteAnswer(chat, i, keeps_all || last_user == chat.size() || i > last_user, setup.glm, prompt);
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
  const char* const opened = chat.thinks || setup.glm.empty_thinking ? kThink : "";
  prompt.Markup(absl::StrCat(kAssistant, opened, chat.thinks ? "" : kEndThink));
}

CallSyntax Calls() {
  return {.arguments = CallSyntax::Arguments::kTagged,
          .call = kCall,
          .call_end = kCallEnd,
          .key = kKey,
          .key_end = kKeyEnd,
          .value = kValue,
          .value_end = kValueEnd,
          .ends_thought = true};
}

}  // namespace

const ChatFamily kGlmChat = {.read = Read, .render = Render, .calls = Calls};

}  // namespace foredraft
