#include "server/api/openai/chat_messages.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/api/conversation/message_gatherer.h"
#include "server/api/fields/tool_fields.h"

namespace foredraft {
namespace {

using nlohmann::json;

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

constexpr char kPartTypes[] = "allowed text";
// Where clients put an assistant's thinking: texts, then lists of blocks. The first field with a text counts.
constexpr const char* kThinkingFields[] = {"reasoning_content", "reasoning", "thinking", "reasoning_details",
                                           "thinking_blocks"};
constexpr size_t kThinkingTexts = 3;

// The text of a part under the first of `names` that it has.
std::string TextOf(FieldReader& fields, std::initializer_list<const char*> names) {
  std::optional<std::string> text;
  for (const char* name : names) {
    std::optional<std::string> read = fields.String(name);
    if (!text.has_value()) text = std::move(read);
  }
  if (!text.has_value()) fields.Refuse(*names.begin(), "absent, required");
  return text.value_or("");
}

// Adds one part to the message. Parts without a type are texts.
absl::Status ReadPart(const json& part, const std::string& name, FieldContext& context, ChatMessage& message,
                      std::string& thinking) {
  if (!part.is_object()) return Refuse(name, ": ", ShowJson(part), ", allowed an object");
  FieldReader fields(part, name + ".", context);
  const std::string type = fields.String("type").value_or("text");
  if (type == "text" || type == "input_text" || type == "output_text" || type == "refusal") {
    MessageGatherer::AddText(message, TextOf(fields, {type == "refusal" ? "refusal" : "text"}));
  } else if (type == "thinking" || type == "reasoning") {
    thinking += TextOf(fields, {type == "thinking" ? "thinking" : "reasoning", "text"});
  } else if (type == "tool_reference") {
    message.tool_references.push_back(TextOf(fields, {"tool_name"}));
  } else {
    fields.Refuse("type", absl::StrCat(ShowJson(type), ", ", kPartTypes));
  }
  fields.End();
  return fields.status();
}

// A message's text: a string, or parts.
absl::Status ReadContent(const json& content, const std::string& field, FieldContext& context,
                         ChatMessage& message) {
  if (content.is_string()) {
    message.content = content.get<std::string>();
    return absl::OkStatus();
  }
  if (!content.is_array()) {
    return Refuse(field, ": ", ShowJson(content), ", allowed a string or a list of parts");
  }
  std::string thinking;
  for (size_t i = 0; i < content.size(); ++i) {
    RETURN_IF_ERROR(ReadPart(content[i], absl::StrCat(field, "[", i, "]"), context, message, thinking));
  }
  if (!message.part_ends.empty()) message.part_ends.pop_back();  // the last part ends with the text
  if (message.thinking.empty()) message.thinking = std::move(thinking);
  return absl::OkStatus();
}

// The texts of OpenRouter's or litellm's blocks; other members, such as signatures, tell a model nothing.
std::string TextsOfBlocks(FieldReader& fields, const char* field) {
  std::string texts;
  const json* blocks = fields.Find(field);
  if (blocks == nullptr) return texts;
  if (!blocks->is_array()) {
    fields.Refuse(field, absl::StrCat(ShowJson(*blocks), ", allowed a list of blocks"));
    return texts;
  }
  for (const json& block : *blocks) {
    for (const char* name : {"text", "thinking"}) {
      if (!block.is_object() || !block.contains(name) || !block[name].is_string()) continue;
      texts += block[name].get<std::string>();
    }
  }
  return texts;
}

std::string ReadThinkingText(FieldReader& fields) {
  std::string first;
  for (size_t i = 0; i < std::size(kThinkingFields); ++i) {
    const char* const field = kThinkingFields[i];
    std::string text = i < kThinkingTexts ? fields.String(field).value_or("") : TextsOfBlocks(fields, field);
    if (first.empty()) first = std::move(text);
  }
  return first;
}

// The calls of the last assistant's message by name. The map is built only when a result needs it, and once
// per message: a body may hold very many calls and results.
class CallsByName {
 public:
  // `calls` stay in place until the next Follow.
  void Follow(const std::vector<ToolCall>& calls) {
    calls_ = &calls;
    by_name_.clear();
  }
  // The last call of this name; null where there is none.
  const ToolCall* Find(const std::string& name) {
    if (calls_ == nullptr) return nullptr;
    if (by_name_.empty()) {
      for (const ToolCall& call : *calls_) by_name_[call.name] = &call;
    }
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

 private:
  const std::vector<ToolCall>* calls_ = nullptr;
  absl::flat_hash_map<std::string_view, const ToolCall*> by_name_;
};

// A function's result in OpenAI's first form names the function, not the call.
void AnswerByName(const std::string& name, CallsByName& calls, FieldReader& fields, ChatMessage& message) {
  message.role = "tool";
  const ToolCall* const call = calls.Find(name);
  if (call == nullptr) {
    return fields.Refuse("name", absl::StrCat(ShowJson(name), ", allowed the name of a call in front of it"));
  }
  message.tool_call_id = call->id;
}

absl::StatusOr<ChatMessage> ReadMessage(const json& message, const std::string& name,
                                        CallsByName& calls_before, FieldContext& context, bool& continues) {
  if (!message.is_object()) return Refuse(name, ": ", ShowJson(message), ", allowed an object");
  FieldReader fields(message, name + ".", context);
  ChatMessage read;
  read.role = fields.String("role").value_or("");
  if (read.role == "developer") read.role = "system";  // OpenAI's newer name
  if (const json* calls = fields.Find("tool_calls"); calls != nullptr) {
    ASSIGN_OR_RETURN(read.tool_calls, ReadToolCalls(*calls, name + ".tool_calls", context));
  }
  if (const json* call = fields.Find("function_call"); call != nullptr && !call->empty()) {
    if (!call->is_object())
      fields.Refuse("function_call", absl::StrCat(ShowJson(*call), ", allowed an object"));
    RETURN_IF_ERROR(fields.status());
    ASSIGN_OR_RETURN(ToolCall one, ReadFunctionCall(*call, name + ".function_call", context));
    read.tool_calls.push_back(std::move(one));
  }
  read.tool_call_id = fields.String("tool_call_id").value_or("");
  read.thinking = ReadThinkingText(fields);
  if (const json* content = fields.Find("content"); content != nullptr) {
    fields.Keep(ReadContent(*content, name + ".content", context, read));
  }
  if (read.role != "assistant") {
    for (const char* field : kThinkingFields) {
      if (fields.Find(field) != nullptr) fields.Drop(field);
    }
    read.thinking.clear();
  }
  // In other roles `name` is free text, which may have any type.
  if (read.role == "function") {
    AnswerByName(fields.String("name").value_or(""), calls_before, fields, read);
  } else {
    (void)fields.Find("name");
  }
  for (const char* field : {"prefix", "partial"}) continues |= fields.Bool(field, false);
  fields.End();
  RETURN_IF_ERROR(fields.status());
  return read;
}

}  // namespace

absl::StatusOr<ReadMessagesResult> ReadMessages(const json* messages, FieldContext& context) {
  if (messages == nullptr || !messages->is_array()) {
    return Refuse("messages: ", messages == nullptr ? "absent" : ShowJson(*messages),
                  ", allowed a list of messages");
  }
  ReadMessagesResult read;
  read.messages.reserve(messages->size());  // so that the calls of each message stay in place
  CallsByName calls;
  for (const json& message : *messages) {
    const std::string name = absl::StrCat("messages[", read.messages.size(), "]");
    bool continues = false;
    ASSIGN_OR_RETURN(ChatMessage next, ReadMessage(message, name, calls, context, continues));
    const bool is_last = read.messages.size() + 1 == messages->size();
    read.continues = continues && is_last && CanBeContinued(next);
    if (continues && !read.continues) context.notes.Dropped("messages[].prefix");
    read.messages.push_back(std::move(next));
    if (read.messages.back().role == "assistant") calls.Follow(read.messages.back().tool_calls);
  }
  return read;
}

}  // namespace foredraft
