#include "server/text/chat_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
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
      {ChatTemplate::kGlm47,
       {"[gMASK]<sop>", "<|user|>{{", "<|system|>{{", "<|assistant|>", "enable_thinking", "'</think>'",
        "'<think>'"},
       {"'<think></think>'", "/nothink", "reasoning_effort"}},
      {ChatTemplate::kKimiK2,
       {"<|im_system|>tool_declare<|im_middle|>", "<|im_user|>", "<|im_assistant|>",
        "<|tool_calls_section_begin|>", "## Return of "},
       {"tools_ts_str", "enable_thinking", "preserve_thinking"}}};
  return *marks;
}

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
    case ChatTemplate::kGlm47:
      return kGlm47Chat;
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
      "the checkpoint's chat template is none of those of DeepSeek-R1, DeepSeek-V3.1, GLM-4.7 and Kimi-K2");
}

absl::StatusOr<ChatFormat> ChatFormat::Create(const Tokenizer& tokenizer, std::string_view own_format) {
  ASSIGN_OR_RETURN(const ChatTemplate chat_template, RecognizeTemplate(tokenizer, own_format));
  const ChatFamily& family = FamilyOf(chat_template);
  ASSIGN_OR_RETURN(ChatSetup setup, family.read(tokenizer));
  return ChatFormat(tokenizer, family, std::move(setup));
}

absl::StatusOr<bool> ChatFormat::Thinks(std::optional<bool> thinking, const ChatTools& tools) const {
  const bool thinks = thinking.value_or(setup_.opens_thinking);
  if (!setup_.has_choice && thinks != setup_.opens_thinking) {
    return absl::InvalidArgumentError(
        absl::StrFormat("thinking: %s, allowed %s: this model's chat template has no choice",
                        thinks ? "true" : "false", setup_.opens_thinking ? "true" : "false"));
  }
  if (thinks && !setup_.calls_while_thinking && tools.has_effect()) {
    return absl::InvalidArgumentError(
        "thinking: true, allowed false with tools: this model calls tools only without thinking");
  }
  return thinks;
}

absl::StatusOr<std::vector<int32_t>> ChatFormat::Render(std::span<const ChatMessage> messages,
                                                        std::optional<bool> thinking,
                                                        const ChatTools& tools) const {
  ASSIGN_OR_RETURN(const std::vector<size_t> order, OrderOfMessages(messages));
  ASSIGN_OR_RETURN(const bool thinks, Thinks(thinking, tools));
  std::vector<ChatMessage> ordered;
  if (!std::is_sorted(order.begin(), order.end())) {
    for (const size_t i : order) ordered.push_back(messages[i]);
  }
  const Conversation chat = {
      .messages = ordered.empty() ? messages : std::span<const ChatMessage>(ordered),
      .tools = tools.has_effect() ? std::span<const ChatTool>(tools.tools) : std::span<const ChatTool>(),
      .thinks = thinks,
      .indices = order};
  PromptWriter prompt(*tokenizer_);
  prompt.Marks(setup_.opening);
  family_->render(chat, setup_, prompt);
  return prompt.TakeIds();
}

}  // namespace foredraft
