#include "server/text/conversation_check.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

template <class... Parts>
absl::Status Refuse(size_t message, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("chat.messages[", message, "]", parts...));
}

// A client's text as part of one line: its first whole characters, control characters escaped.
std::string Shown(std::string_view text) {
  const std::string_view begin = text.substr(0, 32);
  return absl::Utf8SafeCEscape(std::string(begin.substr(0, FirstInvalidUtf8(begin))));
}

absl::Status CheckMessage(const ChatMessage& message, size_t i) {
  const std::string& role = message.role;
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    return Refuse(i, ".role: \"", Shown(role), "\", allowed system, user, assistant, tool");
  }
  if (role != "assistant" && !message.tool_calls.empty()) {
    return Refuse(i, ".tool_calls: given with role ", role, ", allowed with assistant");
  }
  if (role != "assistant" && !message.thinking.empty()) {
    return Refuse(i, ".thinking: given with role ", role, ", allowed with assistant");
  }
  if (role != "tool" && !message.tool_call_id.empty()) {
    return Refuse(i, ".tool_call_id: given with role ", role, ", allowed with tool");
  }
  for (size_t c = 0; c < message.tool_calls.size(); ++c) {
    const std::string& name = message.tool_calls[c].name;
    if (IsToolName(name)) continue;
    return Refuse(i, ".tool_calls[", c, "].name: \"", Shown(name), "\", allowed 1..", kMaxToolNameBytes,
                  " letters, digits, _, - and .");
  }
  return absl::OkStatus();
}

// The results that follow the calls of message `answer`, from `begin` on: the index of each call's result.
// Results without an id are those of the calls that no other result names, in order.
absl::StatusOr<std::vector<size_t>> ResultsOf(std::span<const ChatMessage> messages, size_t answer,
                                              size_t begin) {
  const std::vector<ToolCall>& calls = messages[answer].tool_calls;
  constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<size_t> results(calls.size(), kNone);
  size_t end = begin;
  for (; end < messages.size() && messages[end].role == "tool"; ++end) {
    if (end - begin >= calls.size()) {
      return Refuse(end, ".role: \"tool\", allowed for ", calls.size(),
                    " messages, one for each of the calls");
    }
    const std::string& id = messages[end].tool_call_id;
    if (id.empty()) continue;
    size_t call = 0;
    while (call < calls.size() && (calls[call].id != id || results[call] != kNone)) ++call;
    if (call == calls.size()) {
      return Refuse(end, ".tool_call_id: \"", Shown(id), "\", allowed an id of chat.messages[", answer,
                    "].tool_calls that has no result yet");
    }
    results[call] = end;
  }
  if (end - begin < calls.size()) {
    return Refuse(answer, ".tool_calls: ", calls.size(), " calls, and ", end - begin,
                  " messages of role tool follow, allowed one for each call");
  }
  for (size_t i = begin; i < end; ++i) {
    if (messages[i].tool_call_id.empty()) *std::find(results.begin(), results.end(), kNone) = i;
  }
  return results;
}

}  // namespace

size_t TextBytes(const ChatMessage& message) {
  size_t bytes = message.content.size() + message.thinking.size() + message.tool_call_id.size();
  for (const ToolCall& call : message.tool_calls) {
    bytes += call.id.size() + call.name.size() + call.arguments.size();
  }
  return bytes;
}

size_t TextBytes(const ChatTools& tools) {
  size_t bytes = 0;
  for (const ChatTool& tool : tools.tools) {
    bytes += tool.name.size() + tool.description.size() + tool.parameters.size();
  }
  for (const std::string& name : tools.allowed) bytes += name.size();
  return bytes;
}

bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
         });
}

absl::StatusOr<std::vector<size_t>> OrderOfMessages(std::span<const ChatMessage> messages) {
  if (messages.empty()) return absl::InvalidArgumentError("chat.messages: empty, allowed at least 1 message");
  for (size_t i = 0; i < messages.size(); ++i) RETURN_IF_ERROR(CheckMessage(messages[i], i));
  std::vector<size_t> order;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "tool") {
      return Refuse(i, ".role: \"tool\", allowed behind an assistant's message with tool_calls");
    }
    order.push_back(i);
    if (messages[i].tool_calls.empty()) continue;
    ASSIGN_OR_RETURN(const std::vector<size_t> results, ResultsOf(messages, i, i + 1));
    order.insert(order.end(), results.begin(), results.end());
    i += results.size();
  }
  const std::string& last = messages.back().role;
  if (last == "user" || last == "tool") return order;
  return Refuse(messages.size() - 1, ".role: \"", last, "\", allowed user or tool for the last message");
}

}  // namespace foredraft
