#include "server/text/chat_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

constexpr char kUser[] = "<｜User｜>";
constexpr char kAssistant[] = "<｜Assistant｜>";
constexpr char kEndOfSentence[] = "<｜end▁of▁sentence｜>";
constexpr char kThink[] = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kR1Format = "deepseek_r1";
constexpr std::string_view kV4Format = "deepseek_v4";

// What a template's source has to have, so that its other versions are not taken for it: GLM-4.5, for one,
// puts a line break behind <|user|>.
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
       {"'<think></think>'", "/nothink", "reasoning_effort"}}};
  return *marks;
}

bool Matches(const TemplateMark& mark, std::string_view source) {
  const auto in_source = [&](std::string_view part) { return source.find(part) != std::string_view::npos; };
  return std::all_of(mark.has.begin(), mark.has.end(), in_source) &&
         std::none_of(mark.lacks.begin(), mark.lacks.end(), in_source);
}

// What kDeepseekR1's template puts behind its last marker: "<think>", "<think>\n" or nothing.
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

// The part of an answer behind its thinking: V3.1's template cuts at the first </think>, the others at the
// last one. V4's encoder takes answers and their thinking apart.
std::string_view WithoutThinking(std::string_view answer, ChatTemplate chat_template) {
  const size_t end =
      chat_template == ChatTemplate::kDeepseekV31 ? answer.find(kEndThink) : answer.rfind(kEndThink);
  return end == std::string_view::npos ? answer : answer.substr(end + kEndThink.size());
}

// A role as part of one line of text: its first whole characters, control characters escaped.
std::string ShownRole(std::string_view role) {
  const std::string_view begin = role.substr(0, 32);
  return absl::Utf8SafeCEscape(std::string(begin.substr(0, FirstInvalidUtf8(begin))));
}

absl::Status CheckRoles(std::span<const ChatMessage> messages) {
  if (messages.empty()) return absl::InvalidArgumentError("chat.messages: empty, allowed at least 1 message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return absl::InvalidArgumentError(absl::StrFormat(
          "chat.messages[%d].role: \"%s\", allowed system, user, assistant", i, ShownRole(role)));
    }
  }
  if (messages.back().role == "user") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("chat.messages[%d].role: \"%s\", allowed user for the last message",
                      messages.size() - 1, messages.back().role));
}

std::string ContentField(size_t i) { return absl::StrFormat("chat.messages[%d].content", i); }

}  // namespace

// The ids of a prompt that is being written.
class ChatFormat::Prompt {
 public:
  Prompt(const Tokenizer& tokenizer, std::vector<int32_t> ids)
      : tokenizer_(tokenizer), ids_(std::move(ids)) {}

  void Mark(int32_t id) { ids_.push_back(id); }
  void Mark(std::span<const int32_t> ids) { ids_.insert(ids_.end(), ids.begin(), ids.end()); }
  // Plain text, whatever it spells out. `field` names it in errors.
  absl::Status Text(const std::string& field, std::string_view text) {
    const absl::StatusOr<std::vector<int32_t>> encoded =
        tokenizer_.Encode(text, {.parse_special = false, .add_bos = false});
    if (!encoded.ok()) {
      return absl::Status(encoded.status().code(),
                          absl::StrFormat("%s: %s", field, encoded.status().message()));
    }
    Mark(*encoded);
    return absl::OkStatus();
  }
  // Plain text of several contents, encoded as one text when it ends. Errors name the first content.
  void AddText(const std::string& field, std::string_view text) {
    if (pending_.empty()) pending_field_ = field;
    pending_.append(text);
  }
  absl::Status EndText() {
    const std::string text = std::exchange(pending_, "");
    return Text(pending_field_, text);
  }
  std::vector<int32_t> TakeIds() { return std::move(ids_); }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  std::string pending_;
  std::string pending_field_;
};

absl::StatusOr<ChatTemplate> RecognizeTemplate(const Tokenizer& tokenizer, std::string_view own_format) {
  if (!tokenizer.chat_template().has_value()) {
    CHECK(own_format == kR1Format || own_format == kV4Format) << own_format;
    return own_format == kV4Format ? ChatTemplate::kDeepseekV4 : ChatTemplate::kDeepseekR1;
  }
  for (const TemplateMark& mark : TemplateMarks()) {
    if (Matches(mark, *tokenizer.chat_template())) return mark.chat_template;
  }
  return absl::FailedPreconditionError(
      "the checkpoint's chat template is none of those of DeepSeek-R1, DeepSeek-V3.1 and GLM-4.7");
}

absl::StatusOr<ChatFormat> ChatFormat::Create(const Tokenizer& tokenizer, std::string_view own_format) {
  ASSIGN_OR_RETURN(const ChatTemplate chat_template, RecognizeTemplate(tokenizer, own_format));
  ChatFormat format(tokenizer, chat_template);
  RETURN_IF_ERROR(chat_template == ChatTemplate::kGlm47 ? format.FindGlmMarkup()
                                                        : format.FindDeepseekMarkup());
  return format;
}

absl::StatusOr<int32_t> ChatFormat::Find(std::string_view content) const {
  const std::optional<int32_t> id = tokenizer_->AddedTokenId(content);
  if (id.has_value()) return *id;
  return absl::FailedPreconditionError(
      absl::StrFormat("tokenizer.json has no added token \"%s\", which the chat format needs", content));
}

absl::Status ChatFormat::FindDeepseekMarkup() {
  if (tokenizer_->bos_id() >= 0) opening_ = {tokenizer_->bos_id()};
  ASSIGN_OR_RETURN(markup_.user, Find(kUser));
  ASSIGN_OR_RETURN(markup_.assistant, Find(kAssistant));
  markup_.end_of_answer = tokenizer_->eos_id();
  if (markup_.end_of_answer < 0) {
    ASSIGN_OR_RETURN(markup_.end_of_answer, Find(kEndOfSentence));
  }
  stop_ids_ = {markup_.end_of_answer};
  if (has_choice()) {
    ASSIGN_OR_RETURN(markup_.begin_thinking, Find(kThink));
    ASSIGN_OR_RETURN(markup_.end_thinking, Find(kEndThink));
    return absl::OkStatus();
  }
  const std::string opening = OpeningOfThinking(*tokenizer_);
  ASSIGN_OR_RETURN(thinking_opening_, tokenizer_->Encode(opening, {.parse_special = true, .add_bos = false}));
  opens_thinking_ = !opening.empty();
  return absl::OkStatus();
}

absl::Status ChatFormat::FindGlmMarkup() {
  ASSIGN_OR_RETURN(const int32_t mask, Find("[gMASK]"));
  ASSIGN_OR_RETURN(const int32_t start, Find("<sop>"));
  opening_ = {mask, start};
  ASSIGN_OR_RETURN(markup_.system, Find("<|system|>"));
  ASSIGN_OR_RETURN(markup_.user, Find("<|user|>"));
  ASSIGN_OR_RETURN(markup_.assistant, Find("<|assistant|>"));
  ASSIGN_OR_RETURN(markup_.begin_thinking, Find(kThink));
  ASSIGN_OR_RETURN(markup_.end_thinking, Find(kEndThink));
  ASSIGN_OR_RETURN(const int32_t observation, Find("<|observation|>"));
  stop_ids_ = {markup_.user, observation};
  opens_thinking_ = true;
  return absl::OkStatus();
}

absl::Status ChatFormat::RenderDeepseek(std::span<const ChatMessage> messages, Prompt& prompt) const {
  std::string system;
  bool first = true;
  for (const ChatMessage& message : messages) {
    if (message.role != "system") continue;
    absl::StrAppend(&system, first ? "" : "\n\n", message.content);
    first = false;
  }
  RETURN_IF_ERROR(prompt.Text("chat.messages, role system", system));
  const bool marks_thinking = template_ == ChatTemplate::kDeepseekV31;
  bool after_user = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == "system") continue;
    const bool from_user = message.role == "user";
    if (from_user) {
      prompt.Mark(markup_.user);
      RETURN_IF_ERROR(prompt.Text(ContentField(i), message.content));
    } else {
      // V3.1's template opens an answer only behind a user's message.
      if (after_user || !marks_thinking) prompt.Mark(markup_.assistant);
      if (after_user && marks_thinking) prompt.Mark(markup_.end_thinking);
      RETURN_IF_ERROR(prompt.Text(ContentField(i), WithoutThinking(message.content, template_)));
      prompt.Mark(markup_.end_of_answer);
    }
    after_user = from_user;
  }
  prompt.Mark(markup_.assistant);
  return absl::OkStatus();
}

absl::Status ChatFormat::RenderV4(std::span<const ChatMessage> messages, Prompt& prompt) const {
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const std::string_view before = i == 0 ? std::string_view() : messages[i - 1].role;
    if (message.role == "assistant") {
      if (before == "user") {
        RETURN_IF_ERROR(prompt.EndText());
        prompt.Mark(markup_.assistant);
        prompt.Mark(markup_.end_thinking);
      }
      prompt.AddText(ContentField(i), WithoutThinking(message.content, template_));
      RETURN_IF_ERROR(prompt.EndText());
      prompt.Mark(markup_.end_of_answer);
    } else if (message.role == "user" && before == "user") {
      prompt.AddText(ContentField(i), absl::StrCat("\n\n", message.content));
    } else {
      if (message.role == "user") {
        RETURN_IF_ERROR(prompt.EndText());
        prompt.Mark(markup_.user);
      }
      prompt.AddText(ContentField(i), message.content);
    }
  }
  RETURN_IF_ERROR(prompt.EndText());
  prompt.Mark(markup_.assistant);
  return absl::OkStatus();
}

absl::Status ChatFormat::RenderGlm(std::span<const ChatMessage> messages, Prompt& prompt) const {
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == "assistant") {
      prompt.Mark(markup_.assistant);
      prompt.Mark(markup_.end_thinking);
      RETURN_IF_ERROR(
          prompt.Text(ContentField(i), StripWhiteSpace(WithoutThinking(message.content, template_))));
    } else {
      prompt.Mark(message.role == "system" ? markup_.system : markup_.user);
      RETURN_IF_ERROR(prompt.Text(ContentField(i), message.content));
    }
  }
  prompt.Mark(markup_.assistant);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ChatFormat::Render(std::span<const ChatMessage> messages,
                                                        std::optional<bool> thinking) const {
  RETURN_IF_ERROR(CheckRoles(messages));
  const bool thinks = thinking.value_or(opens_thinking_);
  if (!has_choice() && thinks != opens_thinking_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("thinking: %s, allowed %s: this model's chat template has no choice",
                        thinks ? "true" : "false", opens_thinking_ ? "true" : "false"));
  }
  Prompt prompt(*tokenizer_, opening_);
  if (template_ == ChatTemplate::kGlm47) {
    RETURN_IF_ERROR(RenderGlm(messages, prompt));
  } else if (template_ == ChatTemplate::kDeepseekV4) {
    RETURN_IF_ERROR(RenderV4(messages, prompt));
  } else {
    RETURN_IF_ERROR(RenderDeepseek(messages, prompt));
  }
  if (has_choice()) {
    prompt.Mark(thinks ? markup_.begin_thinking : markup_.end_thinking);
  } else {
    prompt.Mark(thinking_opening_);
  }
  return prompt.TakeIds();
}

}  // namespace foredraft
