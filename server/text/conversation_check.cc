#include "server/text/conversation_check.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
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
  if (role != "system" && role != "user" && role != "assistant" && role != "tool" &&
      role != "latest_reminder") {
    return Refuse(i, ".role: \"", Shown(role), "\", allowed system, user, assistant, tool, latest_reminder");
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

// The calls of one answer, and for each call its result among those after the answer. There may be as many as
// a body holds, so nothing here looks at all of them for one result.
class CallResults {
 public:
  CallResults(std::span<const ChatMessage> messages, size_t answer)
      : messages_(messages), answer_(answer), results_(messages[answer].tool_calls.size(), kNoCall) {
    const std::vector<ToolCall>& calls = messages[answer].tool_calls;
    // A result belongs to the first call with its id that has none yet.
    for (size_t c = calls.size(); c-- > 0;) calls_of_id_[calls[c].id].push_back(c);
  }

  // Results without an id are those of the calls that no other result names, in order.
  absl::Status Add(size_t result) {
    const std::string& id = messages_[result].tool_call_id;
    if (++count_ > results_.size()) {
      return Refuse(result, ".role: \"tool\", allowed for ", results_.size(),
                    " messages, one for each of the calls");
    }
    if (id.empty()) {
      unnamed_.push_back(result);
      return absl::OkStatus();
    }
    const auto calls = calls_of_id_.find(id);
    if (calls == calls_of_id_.end() || calls->second.empty()) {
      return Refuse(result, ".tool_call_id: \"", Shown(id), "\", allowed an id of chat.messages[", answer_,
                    "].tool_calls that has no result yet");
    }
    results_[calls->second.back()] = result;
    calls->second.pop_back();
    return absl::OkStatus();
  }

  // Appends the answer and its results to `order`.
  void AppendTo(ConversationOrder& order, FieldNotes& notes) {
    order.messages.push_back(answer_);
    order.call_of.push_back(kNoCall);
    size_t next_unnamed = 0;
    for (size_t c = 0; c < results_.size(); ++c) {
      if (results_[c] == kNoCall && next_unnamed < unnamed_.size()) results_[c] = unnamed_[next_unnamed++];
      if (results_[c] == kNoCall) {
        notes.Dropped("messages[].tool_calls");  // that have no result
        continue;
      }
      order.messages.push_back(results_[c]);
      order.call_of.push_back(c);
    }
  }

 private:
  const std::span<const ChatMessage> messages_;
  const size_t answer_;
  std::vector<size_t> results_;  // by call
  std::vector<size_t> unnamed_;
  size_t count_ = 0;
  absl::flat_hash_map<std::string_view, std::vector<size_t>> calls_of_id_;  // in reverse
};

bool SaysNothing(const ChatMessage& message) {
  return message.role == "assistant" && message.content.empty() && message.thinking.empty() &&
         message.tool_calls.empty();
}

}  // namespace

size_t TextBytes(const ChatMessage& message) {
  size_t bytes = message.content.size() + message.thinking.size() + message.tool_call_id.size();
  for (const ToolCall& call : message.tool_calls) {
    bytes += call.id.size() + call.name.size() + call.arguments.size();
  }
  for (const ToolChange& change : message.tool_changes) {
    bytes += change.name.size();
    if (change.definition)
      bytes += change.definition->description.size() + change.definition->parameters.size();
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

absl::StatusOr<ConversationOrder> OrderOfMessages(std::span<const ChatMessage> messages, FieldNotes& notes) {
  for (size_t i = 0; i < messages.size(); ++i) RETURN_IF_ERROR(CheckMessage(messages[i], i));
  if (!messages.empty() && SaysNothing(messages.back())) messages = messages.first(messages.size() - 1);
  if (messages.empty()) return absl::InvalidArgumentError("chat.messages: empty, allowed at least 1 message");
  ConversationOrder order;
  for (size_t i = 0; i < messages.size();) {
    if (messages[i].role == "tool") {
      return Refuse(i, ".role: \"tool\", allowed behind an assistant's message with tool_calls");
    }
    if (messages[i].tool_calls.empty()) {
      order.messages.push_back(i++);
      order.call_of.push_back(kNoCall);
      continue;
    }
    // The results may stand after other messages, up to the next answer.
    CallResults results(messages, i);
    size_t end = i + 1;
    for (; end < messages.size() && messages[end].role != "assistant"; ++end) {
      if (messages[end].role == "tool") RETURN_IF_ERROR(results.Add(end));
    }
    results.AppendTo(order, notes);
    for (++i; i < end; ++i) {
      if (messages[i].role == "tool") continue;
      order.messages.push_back(i);
      order.call_of.push_back(kNoCall);
    }
  }
  return order;
}

}  // namespace foredraft
