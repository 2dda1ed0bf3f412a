#include "server/text/chat_format.h"

#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

constexpr char kUser[] = "<｜User｜>";
constexpr char kAssistant[] = "<｜Assistant｜>";
constexpr char kEndOfSentence[] = "<｜end▁of▁sentence｜>";
constexpr char kThink[] = "<think>";
constexpr std::string_view kEndThink = "</think>";

// The text that opens the answer's thinking section; empty if the chat template does not open one.
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

std::string_view WithoutThinking(std::string_view answer) {
  const size_t end = answer.rfind(kEndThink);
  return end == std::string_view::npos ? answer : answer.substr(end + kEndThink.size());
}

}  // namespace

absl::StatusOr<ChatFormat> ChatFormat::Create(const Tokenizer& tokenizer) {
  ChatFormat format(tokenizer);
  format.end_id_ = tokenizer.eos_id();
  struct Mark {
    std::string_view content;
    int32_t& id;
  };
  for (const Mark& mark : {Mark{kUser, format.user_id_}, Mark{kAssistant, format.assistant_id_},
                           Mark{kEndOfSentence, format.end_id_}}) {
    if (mark.id >= 0) continue;
    const std::optional<int32_t> id = tokenizer.AddedTokenId(mark.content);
    if (!id.has_value()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "tokenizer.json: no added token \"%s\", which the chat format needs", mark.content));
    }
    mark.id = *id;
  }
  ASSIGN_OR_RETURN(format.thinking_ids_,
                   tokenizer.Encode(OpeningOfThinking(tokenizer), {.parse_special = true, .add_bos = false}));
  return format;
}

absl::Status ChatFormat::AppendText(std::string_view field, std::string_view text,
                                    std::vector<int32_t>& ids) const {
  const absl::StatusOr<std::vector<int32_t>> encoded =
      tokenizer_->Encode(text, {.parse_special = false, .add_bos = false});
  if (!encoded.ok()) {
    return absl::Status(encoded.status().code(),
                        absl::StrFormat("%s: %s", field, encoded.status().message()));
  }
  ids.insert(ids.end(), encoded->begin(), encoded->end());
  return absl::OkStatus();
}

absl::Status ChatFormat::AppendSystem(std::span<const ChatMessage> messages,
                                      std::vector<int32_t>& ids) const {
  std::string system;
  bool first = true;
  for (const ChatMessage& message : messages) {
    if (message.role != "system") continue;
    absl::StrAppend(&system, first ? "" : "\n\n", message.content);
    first = false;
  }
  return AppendText("chat.messages, role system", system, ids);
}

absl::StatusOr<std::vector<int32_t>> ChatFormat::Render(std::span<const ChatMessage> messages) const {
  if (messages.empty()) return absl::InvalidArgumentError("chat.messages: empty, allowed at least 1 message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return absl::InvalidArgumentError(absl::StrFormat(
          "chat.messages[%d].role: \"%s\", allowed system, user, assistant", i, role.substr(0, 32)));
    }
  }
  if (messages.back().role != "user") {
    return absl::InvalidArgumentError(
        absl::StrFormat("chat.messages[%d].role: \"%s\", allowed user for the last message",
                        messages.size() - 1, messages.back().role));
  }

  std::vector<int32_t> ids;
  if (tokenizer_->bos_id() >= 0) ids.push_back(tokenizer_->bos_id());
  RETURN_IF_ERROR(AppendSystem(messages, ids));
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == "system") continue;
    const bool from_user = message.role == "user";
    ids.push_back(from_user ? user_id_ : assistant_id_);
    RETURN_IF_ERROR(
        AppendText(absl::StrFormat("chat.messages[%d].content", i),
                   from_user ? std::string_view(message.content) : WithoutThinking(message.content), ids));
    if (!from_user) ids.push_back(end_id_);
  }
  ids.push_back(assistant_id_);
  ids.insert(ids.end(), thinking_ids_.begin(), thinking_ids_.end());
  return ids;
}

}  // namespace foredraft
