#include "server/api/responses/input_items.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

std::string RequiredText(FieldReader& fields, const char* field) {
  std::optional<std::string> text = fields.String(field);
  if (!text.has_value()) fields.Refuse(field, "absent, required");
  return std::move(text).value_or("");
}

// One part of a content or an output.
absl::Status ReadPart(const json& part, const std::string& name, FieldContext& context,
                      ChatMessage& message) {
  if (!part.is_object()) return Refuse(name, ": ", ShowJson(part), ", allowed an object");
  FieldReader fields(part, name + ".", context);
  const std::string type = fields.String("type").value_or("input_text");
  if (type == "input_text" || type == "output_text" || type == "text") {
    MessageGatherer::AddText(message, RequiredText(fields, "text"));
  } else if (type == "refusal") {
    MessageGatherer::AddText(message, RequiredText(fields, "refusal"));
  } else if (type == "input_image" || type == "input_file" || type == "input_audio") {
    MessageGatherer::AddText(message, kUnsupportedImage);
    fields.Drop(type);
  } else {
    fields.Refuse(
        "type",
        absl::StrCat(ShowJson(type), ", allowed input_text, output_text, refusal, input_image, input_file"));
  }
  fields.End();
  return fields.status();
}

// Reads a text or parts; an absent field is an empty text.
absl::Status ReadContent(FieldReader& fields, const char* field, ChatMessage& message) {
  const json* content = fields.Find(field);
  if (content == nullptr) return absl::OkStatus();
  if (content->is_string()) {
    MessageGatherer::AddText(message, content->get<std::string>());
    return absl::OkStatus();
  }
  const std::string name = fields.path() + field;
  if (!content->is_array()) {
    return Refuse(name, ": ", ShowJson(*content), ", allowed a string or a list of parts");
  }
  for (size_t i = 0; i < content->size(); ++i) {
    RETURN_IF_ERROR(ReadPart((*content)[i], absl::StrCat(name, "[", i, "]"), fields.context(), message));
  }
  return absl::OkStatus();
}

// The texts of a list of {"type", "text"}.
std::string TextsOf(FieldReader& fields, const char* field) {
  std::string texts;
  const json* list = fields.Find(field);
  if (list == nullptr) return texts;
  if (!list->is_array()) {
    fields.Refuse(field, absl::StrCat(ShowJson(*list), ", allowed a list of texts"));
    return texts;
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string name = absl::StrCat(fields.path(), field, "[", i, "]");
    if (!(*list)[i].is_object()) {
      fields.Keep(Refuse(name, ": ", ShowJson((*list)[i]), ", allowed an object"));
      return texts;
    }
    FieldReader read((*list)[i], name + ".", fields.context());
    (void)read.String("type");
    texts += RequiredText(read, "text");
    read.End();
    fields.Keep(read.status());
  }
  return texts;
}

class ItemReader {
 public:
  ItemReader(FieldContext& context, ResponseTools& tools) : context_(context), tools_(tools) {}

  // `text` is the item's.
  absl::Status Read(const json& item, std::string_view text, int index) {
    const std::string name = absl::StrCat("input[", index, "]");
    if (!item.is_object()) return Refuse(name, ": ", ShowJson(item), ", allowed an object");
    FieldReader fields(item, name + ".", context_);
    const std::string type = fields.String("type").value_or("message");
    if (type == "message") {
      fields.Keep(ReadMessage(fields, index));
    } else if (type == "reasoning") {
      ReadReasoning(fields, messages_.Assistant(index));
    } else if (type == "function_call" || type == "custom_tool_call") {
      messages_.Assistant(index).tool_calls.push_back(ReadCall(fields, type == "custom_tool_call"));
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      ChatMessage& message = messages_.Begin("tool", index);
      message.tool_call_id = RequiredText(fields, "call_id");
      fields.Keep(ReadContent(fields, "output", message));
    } else if (type == "additional_tools") {
      if (const json* list = fields.Find("tools"); list != nullptr) {
        fields.Keep(tools_.AddList(*list, MemberText(text, "tools"), name + ".tools", context_));
      }
    } else if (type == "item_reference" || type == "compaction") {
      fields.Refuse("type",
                    absl::StrCat(ShowJson(type), ", allowed items with their content: none are kept"));
    } else {
      fields.Drop(type.substr(0, FieldNotes::kMostNameBytes));
      return fields.status();
    }
    fields.End();
    return fields.status();
  }

  MessageGatherer& messages() { return messages_; }

 private:
  absl::Status ReadMessage(FieldReader& fields, int index) {
    const std::string role = fields.String("role").value_or("");
    if (role == "assistant") return ReadContent(fields, "content", messages_.Assistant(index));
    if (role == "user") return ReadContent(fields, "content", messages_.Begin("user", index));
    if (role == "system" || role == "developer") {
      return ReadContent(fields, "content", messages_.Begin("system", index));
    }
    return Refuse(fields.path(), "role: ", ShowJson(role), ", allowed user, assistant, system, developer");
  }

  // The summary counts only if the thought itself was not sent back.
  static void ReadReasoning(FieldReader& fields, ChatMessage& message) {
    const std::string content = TextsOf(fields, "content");
    const std::string summary = TextsOf(fields, "summary");
    message.thinking += content.empty() ? summary : content;
  }

  static ToolCall ReadCall(FieldReader& fields, bool is_custom) {
    ToolCall call;
    call.id = RequiredText(fields, "call_id");
    call.name = PromptName(fields.String("namespace").value_or(""), RequiredText(fields, "name"));
    call.arguments = is_custom ? CustomArguments(fields.String("input").value_or(""))
                               : fields.String("arguments").value_or("");
    return call;
  }

  FieldContext& context_;
  ResponseTools& tools_;
  MessageGatherer messages_;
};

}  // namespace

absl::StatusOr<GatheredMessages> ReadInputItems(FieldReader& fields, std::string_view body,
                                                ResponseTools& tools) {
  ItemReader items(fields.context(), tools);
  if (std::optional<std::string> instructions = fields.String("instructions")) {
    items.messages().Begin("system", GatheredMessages::kHead).content = *std::move(instructions);
  }
  const json* input = fields.Find("input");
  if (input != nullptr && input->is_string()) {
    items.messages().Begin("user", 0).content = input->get<std::string>();
    return items.messages().Take();
  }
  if (input == nullptr || !input->is_array()) {
    return Refuse("input: ", input == nullptr ? "absent" : ShowJson(*input),
                  ", allowed a text or a list of items");
  }
  const std::vector<std::string_view> texts = ElementTexts(MemberText(body, "input"));
  for (size_t i = 0; i < input->size(); ++i) {
    RETURN_IF_ERROR(items.Read((*input)[i], texts[i], static_cast<int>(i)));
  }
  return items.messages().Take();
}

}  // namespace foredraft
