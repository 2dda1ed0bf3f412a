// Kimi-K2-Instruct, Kimi-K2-Thinking, K2.5, K2.6 and K2.7-Code.
// clang-format off
//
//   [<|im_system|>tool_declare<|im_middle|> tools <|im_end|>]
//   (<|im_system|>system | <|im_user|>user | <|im_assistant|>assistant | <|im_system|>tool) <|im_middle|> text <|im_end|>...
//   <|im_assistant|>assistant<|im_middle|> [from K2.5 on: <think> or <think></think>]
// clang-format on
//
// The first turn is a system text: the template's own, if it has one, where the conversation begins with
// another role. A call's id, "functions.NAME:INDEX", is part of the format: INDEX counts the calls of the
// conversation. Clients' calls that have other ids are given ids of this form. K2-Thinking opens its thinking
// itself. Answers since the last one without calls keep their thinking; from K2.6 on a request may ask that
// all do, and in K2.7 all do. A thinking model may begin its calls without having ended its thought.

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/text/families/chat_family.h"
#include "server/text/families/typescript_tools.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

constexpr char kSystem[] = "<|im_system|>", kUser[] = "<|im_user|>", kAssistant[] = "<|im_assistant|>";
constexpr char kMiddle[] = "<|im_middle|>", kEnd[] = "<|im_end|>";
constexpr char kSection[] = "<|tool_calls_section_begin|>", kSectionEnd[] = "<|tool_calls_section_end|>";
constexpr char kCall[] = "<|tool_call_begin|>", kCallEnd[] = "<|tool_call_end|>";
constexpr char kArguments[] = "<|tool_call_argument_begin|>";
constexpr char kThink[] = "<think>", kNoThought[] = "<think></think>";
constexpr char kFunctions[] = "functions.";
// Templates' texts for conversations without a system text; the first is of the versions since 2025-08.
constexpr const char* kDefaultSystems[] = {"You are Kimi, an AI assistant created by Moonshot AI.",
                                           "You are a helpful assistant"};

// Reads how the template differs from Kimi-K2's first, each difference by the source text that makes it.
void ReadDialect(std::string_view source, ChatSetup& setup) {
  const auto has = [&](std::string_view part) { return source.find(part) != std::string_view::npos; };
  setup.has_thinking = has(kNoThought);
  setup.compact_json = has("separators=(',', ':')");
  for (const char* system : kDefaultSystems) {
    if (setup.default_system.empty() && has(system)) setup.default_system = system;
  }
  setup.kimi.is_k25 = has("tools_ts_str");
  if (!setup.kimi.is_k25) return;
  setup.has_choice = has(" thinking is defined");
  setup.opens_thinking = true;
  setup.has_preserve_thinking = has("preserve_thinking");
  setup.kimi.keeps_past_thinking = setup.has_preserve_thinking ? !has("preserve_thinking | default(false)")
                                                               : !has("last_non_tool_call_assistant_msg");
}

absl::StatusOr<ChatSetup> Read(const Tokenizer& tokenizer) {
  ChatSetup setup;
  for (const char* content : {kSystem, kUser, kAssistant, kMiddle}) {
    RETURN_IF_ERROR(FindMarkup(tokenizer, content).status());
  }
  ASSIGN_OR_RETURN(setup.end_of_answer, FindMarkup(tokenizer, kEnd));
  setup.stop_ids = {setup.end_of_answer};
  setup.has_choice = false;
  setup.part_join = "";
  ReadDialect(*tokenizer.chat_template(), setup);  // by which the family was recognised
  if (!setup.kimi.is_k25) return setup;
  for (const char* content : {kThink, "</think>"}) RETURN_IF_ERROR(FindMarkup(tokenizer, content).status());
  return setup;
}

// Whether a call's id has the form "functions.NAME:INDEX".
bool HasOwnForm(const ToolCall& call) {
  const std::string prefix = absl::StrCat(kFunctions, call.name, ":");
  return call.id.size() > prefix.size() && call.id.starts_with(prefix) &&
         std::all_of(call.id.begin() + static_cast<ptrdiff_t>(prefix.size()), call.id.end(),
                     [](unsigned char c) { return c >= '0' && c <= '9'; });
}

// The ids of a conversation's calls: those of message i begin at first_of[i].
struct CallIds {
  std::vector<std::string> ids;
  std::vector<size_t> first_of;
};
CallIds IdsOf(const Conversation& chat) {
  CallIds result;
  for (const ChatMessage& message : chat.messages) {
    result.first_of.push_back(result.ids.size());
    for (const ToolCall& call : message.tool_calls) {
      result.ids.push_back(HasOwnForm(call) ? call.id
                                            : absl::StrCat(kFunctions, call.name, ":", result.ids.size()));
    }
  }
  return result;
}

void Header(const char* mark, const std::string& role, PromptWriter& prompt) {
  prompt.Markup(absl::StrCat(mark, role, kMiddle));
}

void WriteAnswer(const Conversation& chat, size_t i, const CallIds& ids, PromptWriter& prompt) {
  const ChatMessage& message = chat.messages[i];
  prompt.Content(chat.Field(i, "content"), AnswerOf(message));
  if (message.tool_calls.empty()) return;
  const std::string field = chat.Field(i, "tool_calls");
  prompt.Markup(kSection);
  for (size_t c = 0; c < message.tool_calls.size(); ++c) {
    prompt.Markup(kCall);
    prompt.Content(field, ids.ids[ids.first_of[i] + c]);
    prompt.Markup(kArguments);
    const std::string& arguments = message.tool_calls[c].arguments;
    prompt.Content(field, arguments.empty() ? "{}" : arguments);
    prompt.Markup(kCallEnd);
  }
  prompt.Markup(kSectionEnd);
}

void DeclareTools(const Conversation& chat, const ChatSetup& setup, PromptWriter& prompt) {
  if (chat.tools.empty()) return;
  Header(kSystem, "tool_declare", prompt);
  if (setup.kimi.is_k25) {
    const std::optional<std::string> typescript = TypescriptTools(chat.tools);
    prompt.Content("chat.tools", typescript.has_value() ? *typescript : SortedToolsJson(chat.tools));
    return prompt.Markup(kEnd);
  }
  const JsonSpacing spacing = setup.compact_json ? JsonSpacing::kCompact : JsonSpacing::kSpaced;
  for (const ChatTool& tool : chat.tools) {
    prompt.Markup(&tool == chat.tools.data() ? "[" : setup.compact_json ? "," : ", ");
    prompt.Content("chat.tools", ToolJson(tool, spacing));
  }
  prompt.Markup(absl::StrCat("]", kEnd));
}

// The first answer that keeps its thinking; size() where none does.
size_t FirstKept(const Conversation& chat, const ChatSetup& setup) {
  if (setup.kimi.is_k25 && !chat.thinks) return chat.size();
  const bool keeps_all = setup.has_preserve_thinking && chat.preserve_thinking.has_value()
                             ? *chat.preserve_thinking
                             : setup.kimi.keeps_past_thinking;
  size_t first = 0;
  for (size_t i = 0; i < chat.size() && !keeps_all; ++i) {
    if (chat.role(i) == "assistant" && chat.messages[i].tool_calls.empty()) first = i + 1;
  }
  return first;
}

void Render(const Conversation& chat, const ChatSetup& setup, PromptWriter& prompt) {
  const bool is_k25 = setup.kimi.is_k25;
  DeclareTools(chat, setup, prompt);
  if (chat.role(0) != "system" && !setup.default_system.empty()) {
    Header(kSystem, "system", prompt);
    prompt.Markup(absl::StrCat(setup.default_system, kEnd));
  }
  const CallIds ids = IdsOf(chat);
  const size_t kept_from = FirstKept(chat, setup);
  size_t caller = 0;  // the answer whose results are being written
  for (size_t i = 0; i < chat.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    if (chat.is_continued(i)) {
      Header(kAssistant, "assistant", prompt);
      return WriteContinued(chat,
                            {.opening = kThink,
                             .closed = is_k25 ? kNoThought : "",
                             .keeps_thinking = is_k25 ? chat.thinks : setup.has_thinking},
                            prompt);
    }
    if (message.role == "assistant") {
      Header(kAssistant, "assistant", prompt);
      if (setup.has_thinking) {
        prompt.Markup(kThink);
        if (i >= kept_from) prompt.Content(chat.Field(i, "thinking"), ThinkingOf(message));
        prompt.Markup("</think>");
      }
      WriteAnswer(chat, i, ids, prompt);
      caller = i;
    } else if (message.role == "tool") {
      Header(kSystem, "tool", prompt);
      prompt.Markup("## Return of ");
      prompt.Content(chat.Field(i, "tool_call_id"), ids.ids[ids.first_of[caller] + chat.call_of[i]]);
      prompt.Markup("\n");
      prompt.Content(chat.Field(i, "content"), message.content);
    } else {
      Header(message.role == "system" ? kSystem : kUser, message.role, prompt);
      prompt.Content(chat.Field(i, "content"), message.content);
    }
    prompt.Mark(setup.end_of_answer);
  }
  Header(kAssistant, "assistant", prompt);
  if (is_k25) prompt.Markup(chat.thinks ? kThink : kNoThought);
}

CallSyntax Calls() {
  return {.arguments = CallSyntax::Arguments::kJson,
          .begin = kSection,
          .end = kSectionEnd,
          .call = kCall,
          .name_end = kArguments,
          .call_end = kCallEnd,
          .names_ids = true,
          .ends_thought = true};
}

}  // namespace

const ChatFamily kKimiK2Chat = {.read = Read, .render = Render, .calls = Calls};

}  // namespace foredraft
