#include "server/text/chat_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/text/conversation_check.h"
#include "server/text/prompt_writer.h"

namespace foredraft {
namespace {

constexpr char kUser[] = "<｜User｜>";
constexpr char kAssistant[] = "<｜Assistant｜>";
constexpr char kEndOfSentence[] = "<｜end▁of▁sentence｜>";

// What a template's source has to have, so that its other versions are not taken for it: GLM-4.5, for one,
// puts a line break behind <|user|>, and Kimi-K2's first template writes no calls.
struct TemplateMark {
  ChatTemplate chat_template;
  std::vector<std::string_view> has;
  std::vector<std::string_view> lacks;
};
const std::vector<TemplateMark>& TemplateMarks() {
  static const auto* const marks = new std::vector<TemplateMark>{
      {ChatTemplate::kDeepseekR1, {kUser, kAssistant}, {"thinking is defined", "enable_thinking"}},
      {ChatTemplate::kDeepseekV31,
       {kUser, kAssistant, kEndOfSentence, "not thinking is defined", "'<think>'", "'</think>'"},
       {"enable_thinking"}},
      // 4.7, 5 and 5.1.
      {ChatTemplate::kGlm,
       {"[gMASK]<sop>", "<|user|>{{", "<|system|>{{", "<|assistant|>", "enable_thinking", "'</think>'",
        "'<think>'"},
       {"'<think></think>'", "/nothink", "reasoning_effort"}},
      // 5.2 and 5.3.
      {ChatTemplate::kGlm,
       {"[gMASK]<sop>", "<|user|>{{", "<|system|>{{", "<|assistant|>", "<|system|>Reasoning Effort: {{",
        "'<think></think>'", "'<think>'", "clear_thinking"},
       {"/nothink"}},
      {ChatTemplate::kKimiK2,
       {"<|im_system|>tool_declare<|im_middle|>", "<|im_user|>", "<|im_assistant|>",
        "<|tool_calls_section_begin|>", "## Return of "},
       {"tools_ts_str", "enable_thinking", "preserve_thinking"}}};
  return *marks;
}

bool ForgoesThinking(std::string_view effort) { return effort == "none" || effort == "minimal"; }

bool Matches(const TemplateMark& mark, std::string_view source) {
  const auto in_source = [&](std::string_view part) { return source.find(part) != std::string_view::npos; };
  return std::all_of(mark.has.begin(), mark.has.end(), in_source) &&
         std::none_of(mark.lacks.begin(), mark.lacks.end(), in_source);
}

const ChatFamily& FamilyOf(ChatTemplate chat_template) {
  switch (chat_template) {
    case ChatTemplate::kDeepseekR1:
      return kDeepseekR1Chat;
    case ChatTemplate::kDeepseekV31:
      return kDeepseekV31Chat;
    case ChatTemplate::kDeepseekV32:
      return kDeepseekV32Chat;
    case ChatTemplate::kDeepseekV4:
      return kDeepseekV4Chat;
    case ChatTemplate::kGlm:
      return kGlmChat;
    case ChatTemplate::kKimiK2:
      break;
  }
  return kKimiK2Chat;
}

}  // namespace

absl::StatusOr<ChatTemplate> RecognizeTemplate(const Tokenizer& tokenizer, std::string_view own_format) {
  if (!tokenizer.chat_template().has_value()) {
    if (own_format == "deepseek_v4") return ChatTemplate::kDeepseekV4;
    if (own_format == "deepseek_v32") return ChatTemplate::kDeepseekV32;
    CHECK(own_format == "deepseek_r1") << own_format;
    return ChatTemplate::kDeepseekR1;
  }
  for (const TemplateMark& mark : TemplateMarks()) {
    if (Matches(mark, *tokenizer.chat_template())) return mark.chat_template;
  }
  return absl::FailedPreconditionError(
      "the checkpoint's chat template is none of those of DeepSeek-R1, DeepSeek-V3.1, GLM-4.7, GLM-5 and "
      "Kimi-K2");
}

absl::StatusOr<ChatFormat> ChatFormat::Create(const Tokenizer& tokenizer, std::string_view own_format) {
  ASSIGN_OR_RETURN(const ChatTemplate chat_template, RecognizeTemplate(tokenizer, own_format));
  const ChatFamily& family = FamilyOf(chat_template);
  ASSIGN_OR_RETURN(ChatSetup setup, family.read(tokenizer));
  return ChatFormat(tokenizer, family, std::move(setup));
}

absl::StatusOr<bool> ChatFormat::Thinks(const ChatChoices& choices, const ChatTools& tools) const {
  const std::string& effort = choices.reasoning_effort;
  const bool forgoes = ForgoesThinking(effort);
  if (!effort.empty() && choices.thinking.has_value() && *choices.thinking == forgoes) {
    return absl::InvalidArgumentError(absl::StrFormat("chat.reasoning_effort: %s, given with thinking: %s",
                                                      ShowJson(effort),
                                                      *choices.thinking ? "true" : "false"));
  }
  const bool thinks = effort.empty() ? choices.thinking.value_or(setup_.opens_thinking) : !forgoes;
  if (!setup_.has_choice && thinks != setup_.opens_thinking) {
    if (!effort.empty()) return RefusedEffort(effort);
    return absl::InvalidArgumentError(
        absl::StrFormat("thinking: %s, allowed %s: this model's chat template has no choice",
                        thinks ? "true" : "false", thinks ? "false" : "true"));
  }
  if (thinks && !setup_.calls_while_thinking && tools.has_effect()) {
    return absl::InvalidArgumentError(
        "thinking: true, allowed false with tools: this model calls tools only without thinking");
  }
  return thinks;
}

absl::StatusOr<std::string> ChatFormat::EffortOf(const ChatChoices& choices, bool thinks) const {
  const std::string& asked = choices.reasoning_effort;
  if (!thinks) return std::string();
  if (asked.empty()) return setup_.default_effort;
  for (const ChatEffort& effort : setup_.efforts) {
    if (effort.asked == asked) return effort.written;
  }
  return RefusedEffort(asked);
}

absl::Status ChatFormat::RefusedEffort(const std::string& asked) const {
  std::vector<std::string> allowed;
  if (setup_.has_choice) allowed = {"none", "minimal"};
  for (const ChatEffort& effort : setup_.efforts) allowed.push_back(effort.asked);
  if (allowed.empty()) allowed = {"unset"};
  return absl::InvalidArgumentError(absl::StrCat("chat.reasoning_effort: ", ShowJson(asked), ", allowed ",
                                                 absl::StrJoin(allowed, ", "),
                                                 " with this model's chat template"));
}

absl::StatusOr<std::vector<int32_t>> ChatFormat::Render(std::span<const ChatMessage> messages,
                                                        const ChatChoices& choices,
                                                        const ChatTools& tools) const {
  ASSIGN_OR_RETURN(const std::vector<size_t> order, OrderOfMessages(messages));
  ASSIGN_OR_RETURN(const bool thinks, Thinks(choices, tools));
  ASSIGN_OR_RETURN(const std::string effort, EffortOf(choices, thinks));
  std::vector<ChatMessage> ordered;
  if (!std::is_sorted(order.begin(), order.end())) {
    for (const size_t i : order) ordered.push_back(messages[i]);
  }
  const Conversation chat = {
      .messages = ordered.empty() ? messages : std::span<const ChatMessage>(ordered),
      .tools = tools.has_effect() ? std::span<const ChatTool>(tools.tools) : std::span<const ChatTool>(),
      .thinks = thinks,
      .effort = effort,
      .indices = order};
  PromptWriter prompt(*tokenizer_);
  prompt.Marks(setup_.opening);
  family_->render(chat, setup_, prompt);
  return prompt.TakeIds();
}

}  // namespace foredraft
