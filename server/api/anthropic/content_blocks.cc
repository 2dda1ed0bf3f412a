#include "server/api/anthropic/content_blocks.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/text/json_slice.h"

namespace foredraft {
namespace {

using nlohmann::json;

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Begins Claude Code's first system text, which differs in every request and tells a model nothing.
constexpr char kBillingHeader[] = "x-anthropic-billing-header:";

// Reads content that is a string, or a list of blocks; `read` is called for each block with its place.
template <class ReadBlock>
absl::Status ReadContent(const json& content, const std::string& name, ChatMessage& message,
                         const ReadBlock& read) {
  if (content.is_string()) {
    message.content += content.get<std::string>();
    return absl::OkStatus();
  }
  if (!content.is_array())
    return Refuse(name, ": ", ShowJson(content), ", allowed a string or a list of blocks");
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string block = absl::StrCat(name, "[", i, "]");
    if (!content[i].is_object()) return Refuse(block, ": ", ShowJson(content[i]), ", allowed an object");
    RETURN_IF_ERROR(read(content[i], block, i));
  }
  return absl::OkStatus();
}

std::string RequiredText(FieldReader& fields, const char* field) {
  std::optional<std::string> text = fields.String(field);
  if (!text.has_value()) fields.Refuse(field, "absent, required");
  return std::move(text).value_or("");
}

// Reads a block that is text to a model in any message. False: `type` is another one.
bool ReadTextBlock(FieldReader& fields, const std::string& type, ChatMessage& message) {
  if (type == "text") {
    MessageGatherer::AddText(message, RequiredText(fields, "text"));
  } else if (type == "image" || type == "document" || type == "container_upload") {
    MessageGatherer::AddText(message, kUnsupportedImage);
    fields.Drop(type);
  } else if (type == "search_result") {
    const json* content = fields.Find("content");
    if (content == nullptr) return true;
    const std::string name = fields.path() + "content";
    fields.Keep(ReadContent(*content, name, message, [&](const json& block, const std::string& path, size_t) {
      FieldReader read(block, path + ".", fields.context());
      (void)read.String("type");
      MessageGatherer::AddText(message, RequiredText(read, "text"));
      read.End();
      return read.status();
    }));
  } else {
    return false;
  }
  return true;
}

// Whether blocks of `type` are left out, such as calls that Anthropic's servers ran, their results, and
// hidden thoughts.
bool IsDropped(const std::string& type) {
  return type == "redacted_thinking" || type == "server_tool_use" || type == "mcp_tool_use" ||
         type == "fallback" || type == "compaction" ||
         (type != "tool_result" && absl::EndsWith(type, "_tool_result"));
}

// Reads block i, which adds or removes a tool.
using ReadToolBlock = std::function<void(FieldReader& block, size_t i, const std::string& type)>;

// Reads a system text: a string, or texts that are joined by empty lines. `change` is set where blocks may
// add or remove tools.
absl::Status ReadSystem(const json& content, const std::string& name, FieldContext& context,
                        ChatMessage& message, const ReadToolBlock& change = nullptr) {
  return ReadContent(content, name, message, [&](const json& block, const std::string& path, size_t i) {
    FieldReader fields(block, path + ".", context);
    const std::string type = fields.String("type").value_or("text");
    if (type == "text") {
      const std::string text = RequiredText(fields, "text");
      const bool is_shown = !absl::StartsWith(text, kBillingHeader);
      if (is_shown) absl::StrAppend(&message.content, message.content.empty() ? "" : "\n\n", text);
    } else if (change && (type == "tool_addition" || type == "tool_removal")) {
      change(fields, i, type);
    } else {
      fields.Refuse("type", absl::StrCat(ShowJson(type), ", allowed text",
                                         change ? ", tool_addition, tool_removal" : ""));
    }
    fields.End();
    return fields.status();
  });
}

// `text` is the message's JSON text.
absl::Status ReadSystemMessage(const json& content, const std::string& name, std::string_view text, int item,
                               FieldContext& context, MessagesTools& tools, MessageGatherer& messages) {
  ChatMessage message{.role = "system"};
  std::vector<std::string_view> texts;  // JSON texts of the blocks, once one adds or removes a tool
  const auto change = [&](FieldReader& block, size_t i, const std::string& type) {
    if (texts.empty()) texts = ElementTexts(MemberText(text, "content"));
    tools.ReadChange(block, texts[i], type, message);
  };
  RETURN_IF_ERROR(ReadSystem(content, name, context, message, change));
  const bool says_something = !message.content.empty() || !message.tool_changes.empty();
  if (says_something) messages.Begin("system", item) = std::move(message);
  return absl::OkStatus();
}

absl::Status ReadToolResult(FieldReader& fields, ChatMessage& message) {
  message.tool_call_id = RequiredText(fields, "tool_use_id");
  const json* content = fields.Find("content");
  if (content == nullptr) return absl::OkStatus();
  const std::string name = fields.path() + "content";
  return ReadContent(*content, name, message, [&](const json& block, const std::string& path, size_t) {
    FieldReader read(block, path + ".", fields.context());
    const std::string type = read.String("type").value_or("text");
    if (type == "tool_reference") {
      message.tool_references.push_back(RequiredText(read, "tool_name"));
    } else if (!ReadTextBlock(read, type, message)) {
      read.Refuse("type", absl::StrCat(ShowJson(type),
                                       ", allowed text, image, document, search_result, tool_reference"));
    }
    read.End();
    return read.status();
  });
}

// Makes each tool result a message of its own, before what the user says.
absl::Status ReadUser(const json& content, const std::string& name, int item, FieldContext& context,
                      MessageGatherer& messages) {
  ChatMessage user{.role = "user"};
  bool has_results = false;
  const auto read_block = [&](const json& block, const std::string& path, size_t) {
    FieldReader fields(block, path + ".", context);
    const std::string type = fields.String("type").value_or("text");
    if (type == "tool_result") {
      has_results = true;
      fields.Keep(ReadToolResult(fields, messages.Begin("tool", item)));
    } else if (IsDropped(type)) {
      fields.Drop(type);
      return absl::OkStatus();
    } else if (!ReadTextBlock(fields, type, user)) {
      fields.Refuse("type", absl::StrCat(ShowJson(type),
                                         ", allowed text, tool_result, image, document, search_result"));
    }
    fields.End();
    return fields.status();
  };
  RETURN_IF_ERROR(ReadContent(content, name, user, read_block));
  const bool says_something = !user.content.empty() || !user.part_ends.empty();
  if (says_something || !has_results) messages.Begin("user", item) = std::move(user);
  return absl::OkStatus();
}

// `text` is the block's JSON text.
ToolCall ReadToolUse(FieldReader& fields, std::string_view text) {
  ToolCall call;
  call.id = RequiredText(fields, "id");
  call.name = RequiredText(fields, "name");
  if (const json* input = fields.Find("input"); input != nullptr) {
    if (!input->is_object()) fields.Refuse("input", absl::StrCat(ShowJson(*input), ", allowed an object"));
    call.arguments = std::string(MemberText(text, "input"));
  }
  return call;
}

// `text` is the message's JSON text.
absl::Status ReadAssistant(const json& content, const std::string& name, std::string_view text,
                           FieldContext& context, ChatMessage& message) {
  std::vector<std::string_view> texts;  // JSON texts of the blocks, once there is a call
  return ReadContent(content, name, message, [&](const json& block, const std::string& path, size_t i) {
    FieldReader fields(block, path + ".", context);
    const std::string type = fields.String("type").value_or("text");
    if (type == "thinking") {
      message.thinking += RequiredText(fields, "thinking");
    } else if (type == "tool_use") {
      if (texts.empty()) texts = ElementTexts(MemberText(text, "content"));
      message.tool_calls.push_back(ReadToolUse(fields, texts[i]));
    } else if (IsDropped(type)) {
      fields.Drop(type);
      return absl::OkStatus();
    } else if (!ReadTextBlock(fields, type, message)) {
      fields.Refuse("type",
                    absl::StrCat(ShowJson(type), ", allowed text, thinking, redacted_thinking, tool_use"));
    }
    fields.End();
    return fields.status();
  });
}

// `text` is the JSON text of `object`.
absl::Status ReadMessage(const json& object, const std::string& name, std::string_view text, int item,
                         FieldContext& context, MessagesTools& tools, MessageGatherer& messages) {
  if (!object.is_object()) return Refuse(name, ": ", ShowJson(object), ", allowed an object");
  FieldReader fields(object, name + ".", context);
  const std::string role = fields.String("role").value_or("");
  const json* content = fields.Find("content");
  fields.End();
  RETURN_IF_ERROR(fields.status());
  const json none = "";
  const json& given = content == nullptr ? none : *content;
  const std::string path = name + ".content";
  if (role == "user") return ReadUser(given, path, item, context, messages);
  if (role == "assistant")
    return ReadAssistant(given, path, text, context, messages.Begin("assistant", item));
  if (role == "system") return ReadSystemMessage(given, path, text, item, context, tools, messages);
  return Refuse(name, ".role: ", ShowJson(role), ", allowed user, assistant, system");
}

}  // namespace

absl::StatusOr<GatheredMessages> ReadContentBlocks(FieldReader& fields, std::string_view body,
                                                   MessagesTools& tools) {
  MessageGatherer messages;
  if (const json* system = fields.Find("system"); system != nullptr) {
    ChatMessage message{.role = "system"};
    RETURN_IF_ERROR(ReadSystem(*system, "system", fields.context(), message));
    if (!message.content.empty()) messages.Begin("system", GatheredMessages::kHead) = std::move(message);
  }
  const json* list = fields.Find("messages");
  if (list == nullptr || !list->is_array()) {
    return Refuse("messages: ", list == nullptr ? "absent" : ShowJson(*list), ", allowed a list of messages");
  }
  const std::vector<std::string_view> texts = ElementTexts(MemberText(body, "messages"));
  for (size_t i = 0; i < list->size(); ++i) {
    RETURN_IF_ERROR(ReadMessage((*list)[i], absl::StrCat("messages[", i, "]"), texts[i], static_cast<int>(i),
                                fields.context(), tools, messages));
  }
  return messages.Take();
}

}  // namespace foredraft
