#include "server/api/http/client_error.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "server/api/fields/field_reader.h"

namespace foredraft {
namespace {

bool IsNameByte(unsigned char c) {
  return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '[' || c == ']';
}

// `rest` is what follows the name of the list of messages: "[3].role".
std::string MessageName(const FieldNames& names, const std::string& rest) {
  const std::string list = names.wire == NotedWire::kResponses ? "input" : "messages";
  size_t index = 0;
  const size_t end = rest.find(']');
  const bool is_item = !names.items.empty() && end != std::string::npos &&
                       absl::SimpleAtoi(rest.substr(1, end - 1), &index) && index < names.items.size();
  if (!is_item) return list + rest;
  const int item = names.items[index];
  if (item >= 0) return absl::StrCat(list, "[", item, "]", rest.substr(end + 1));
  return names.wire == NotedWire::kResponses ? "instructions" : "system";
}

// The request's own spelling of a name of foredraft.v1. What follows the renamed prefix stays as it is.
std::string ClientName(const FieldNames& names, const std::string& name) {
  constexpr std::string_view kMessages = "chat.messages";
  if (name.starts_with(kMessages)) return MessageName(names, name.substr(kMessages.size()));
  const bool chat = names.wire != NotedWire::kCompletions;
  const std::pair<std::string_view, std::string_view> renamed[] = {
      {"sampling.", ""},
      {"chat.allowed_tools", "tool_choice.allowed_tools.tools"},
      {"chat.", ""},
      {"chat", names.wire == NotedWire::kResponses ? "input" : "messages"},
      {"text", "prompt"},
      {"token_ids", "prompt"},
      {"logprobs", chat ? "top_logprobs" : "logprobs"},
      {"max_tokens", names.max_tokens},
      {"stop", names.wire == NotedWire::kMessages ? "stop_sequences" : "stop"},
      {"thinking", "chat_template_kwargs.enable_thinking"}};
  for (const auto& [ours, theirs] : renamed) {
    if (!name.starts_with(ours)) continue;
    const bool is_prefix = name.size() == ours.size() || ours.back() == '.' || name[ours.size()] == '[';
    if (is_prefix) return std::string(theirs) + name.substr(ours.size());
  }
  return name;
}

}  // namespace

ErrorKind ErrorKindOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return {400, "invalid_request_error", "invalid_value"};
    case absl::StatusCode::kUnauthenticated:
      return {401, "authentication_error", "invalid_api_key"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error", "permission_denied"};
    case absl::StatusCode::kNotFound:
      return {404, "invalid_request_error", "model_not_found"};
    case absl::StatusCode::kResourceExhausted:
      if (ReasonOf(status) == kReasonOutOfMemory) {
        return {503, "service_unavailable_error", "out_of_memory"};
      }
      return {429, "rate_limit_error",
              ReasonOf(status) == kReasonReaderTooSlow ? "reader_too_slow" : "queue_full"};
    case absl::StatusCode::kUnavailable:
      return {503, "service_unavailable_error", "unavailable"};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "timeout_error", "deadline_exceeded"};
    default:
      return {500, "server_error", "internal_error"};
  }
}

std::string ParamOf(const FieldNames& names, std::string_view text) {
  const std::string param(text.substr(0, text.find(": ")));
  const bool is_name = param.size() < text.size() && std::all_of(param.begin(), param.end(), IsNameByte);
  return is_name ? ClientName(names, param) : "";
}

std::string ClientText(const FieldNames& names, std::string_view text) {
  std::string renamed = ParamOf(names, text);
  size_t at = renamed.empty() ? 0 : text.find(": ");
  bool quoted = false;
  while (at < text.size()) {
    const char c = text[at];
    if (quoted && c == '\\') {
      renamed.append(text.substr(at, 2));
      at += 2;
    } else if (c == '"' || quoted || !IsNameByte(static_cast<unsigned char>(c))) {
      quoted ^= c == '"';
      renamed.push_back(c);
      ++at;
    } else {
      size_t end = at;
      while (end < text.size() && IsNameByte(static_cast<unsigned char>(text[end]))) ++end;
      const std::string word(text.substr(at, end - at));
      // A name of one part may be an ordinary word of the sentence.
      const bool is_field =
          word.starts_with("chat.") || word.starts_with("sampling.") || word == "max_tokens";
      renamed.append(is_field ? ClientName(names, word) : word);
      at = end;
    }
  }
  return renamed;
}

std::string ParamOf(const FieldNames& names, const absl::Status& status) {
  const auto field = status.GetPayload(kClientField);
  if (field.has_value()) return std::string(*field);
  return ParamOf(names, std::string_view(status.message().data(), status.message().size()));
}

std::string ClientText(const FieldNames& names, const absl::Status& status) {
  const std::string text(status.message());
  return status.GetPayload(kClientField).has_value() ? text : ClientText(names, text);
}

}  // namespace foredraft
