#include "server/text/families/chat_family.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "config/json_text.h"
#include "server/text/json_slice.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";

}  // namespace

std::string Conversation::Field(size_t i, const char* name) const {
  return absl::StrCat("chat.messages[", indices[i], "].", name);
}

size_t Conversation::LastUser() const {
  size_t last = size();
  for (size_t i = 0; i < size(); ++i) {
    if (role(i) == "user") last = i;
  }
  return last;
}

absl::StatusOr<int32_t> FindMarkup(const Tokenizer& tokenizer, std::string_view content) {
  const std::optional<int32_t> id = tokenizer.AddedTokenId(content);
  if (id.has_value()) return *id;
  return absl::FailedPreconditionError(
      absl::StrFormat("tokenizer.json has no added token \"%s\", which the chat format needs", content));
}

std::string_view AnswerOf(const ChatMessage& message) {
  const std::string_view content = message.content;
  const size_t end = content.rfind(kEndThink);
  return end == std::string_view::npos ? content : content.substr(end + kEndThink.size());
}

std::string_view ThinkingOf(const ChatMessage& message) {
  if (!message.thinking.empty()) return message.thinking;
  std::string_view content = message.content;
  const size_t end = content.find(kEndThink);
  if (end == std::string_view::npos) return {};
  content = content.substr(0, end);
  const size_t begin = content.rfind(kThink);
  return begin == std::string_view::npos ? content : content.substr(begin + kThink.size());
}

void WriteContinued(const Conversation& chat, const ContinuedStyle& style, PromptWriter& prompt) {
  const size_t i = chat.size() - 1;
  const ChatMessage& message = chat.messages[i];
  const std::string_view thinking = ThinkingOf(message), answer = AnswerOf(message);
  if (!thinking.empty() && style.keeps_thinking) {
    prompt.Markup(style.opening);
    prompt.Content(chat.Field(i, "thinking"), thinking);
    if (!answer.empty()) prompt.Markup(kEndThink);
  } else {
    prompt.Markup(style.closed);
  }
  prompt.Content(chat.Field(i, "content"), answer);
}

std::vector<CallArgument> ArgumentsOf(const ToolCall& call) {
  if (call.arguments.empty()) return {};
  const std::vector<CallArgument> no_object = {
      {.name = "arguments", .value = call.arguments, .is_string = true}};
  if (!IsJson(call.arguments)) return no_object;
  if (call.arguments[call.arguments.find_first_not_of(" \n\r\t")] != '{') return no_object;
  std::vector<CallArgument> arguments;
  absl::flat_hash_map<std::string, size_t> places;
  for (auto& [name, text] : MemberTexts(call.arguments)) {
    const bool is_string = text.starts_with('"');
    CallArgument argument = {.name = name,
                             .value = is_string ? nlohmann::json::parse(text).get<std::string>()
                                                : SpacedJson(text, JsonSpacing::kSpaced),
                             .is_string = is_string};
    // A name that comes twice has its last value, at its first place.
    const auto [place, is_new] = places.try_emplace(std::move(name), arguments.size());
    if (is_new) {
      arguments.push_back(std::move(argument));
    } else {
      arguments[place->second] = std::move(argument);
    }
  }
  return arguments;
}

}  // namespace foredraft
