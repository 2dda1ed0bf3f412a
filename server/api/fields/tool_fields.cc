#include "server/api/fields/tool_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/text/json_slice.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

using nlohmann::json;

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

bool IsCustom(const json& object) { return object.value("type", json()) == "custom"; }

// The object `name`.function of an object of type function, or `name`.custom of one of type custom.
struct NamedMember {
  const char* key;
  const json* object;
};
absl::StatusOr<NamedMember> MemberOf(const std::string& name, FieldReader& fields) {
  const std::string type = fields.String("type").value_or("function");
  if (type != "function" && type != "custom") {
    fields.Refuse("type", absl::StrCat(ShowJson(type), ", allowed function, custom"));
  }
  const char* const key = type == "custom" ? "custom" : "function";
  const json* object = fields.Find(key);
  RETURN_IF_ERROR(fields.status());
  if (object != nullptr && object->is_object()) return NamedMember{key, object};
  return Refuse(name, ".", key, ": ", object == nullptr ? "absent" : ShowJson(*object),
                ", allowed an object");
}

// `text` is the text of `object`.
absl::StatusOr<ChatTool> ReadTool(const json& object, std::string_view text, const std::string& name,
                                  FieldContext& context) {
  FieldReader fields(object, name + ".", context);
  ASSIGN_OR_RETURN(const NamedMember member, MemberOf(name, fields));
  const bool deferred = fields.Bool("defer_loading", false);
  fields.End();
  RETURN_IF_ERROR(fields.status());
  FieldReader read(*member.object, absl::StrCat(name, ".", member.key, "."), context);
  ChatTool tool = IsCustom(object) ? ReadCustomTool(read)
                                   : ReadFunctionTool(read, MemberText(text, "function"), "parameters");
  tool.deferred |= deferred;
  read.End();
  RETURN_IF_ERROR(read.status());
  return tool;
}

// Everything that distinguishes a tool from another, with its schema in one spacing.
std::string KeyOf(const ChatTool& tool) {
  return absl::StrCat(FunctionJson(tool, JsonSpacing::kCompact), tool.deferred);
}

absl::StatusOr<std::vector<ChatTool>> ReadToolList(const json& list, std::string_view body,
                                                   std::set<std::string>& custom, FieldContext& context) {
  ToolList tools;
  RETURN_IF_ERROR(ToolList::ForEach(
      list, MemberText(body, "tools"), "tools",
      [&](const json& object, std::string_view text, const std::string& name) -> absl::Status {
        const bool is_custom = IsCustom(object);
        if (!is_custom && !SkippedType(object, "function", context).empty()) return absl::OkStatus();
        ASSIGN_OR_RETURN(ChatTool tool, ReadTool(object, text, name, context));
        if (is_custom) custom.insert(tool.name);
        tools.Add(std::move(tool));
        return absl::OkStatus();
      }));
  return tools.Take();
}

// The name in {"type": "function", "function": {"name": ...}}, the same with custom, or, as in OpenAI's
// responses API, in {"type": "function", "name": ...}.
absl::StatusOr<std::string> NameOf(const json& object, const std::string& name, FieldContext& context) {
  if (!object.is_object()) return Refuse(name, ": ", ShowJson(object), ", allowed an object");
  FieldReader fields(object, name + ".", context);
  if (!object.contains("function") && object.value("type", json()) == "function") {
    (void)fields.String("type");
    std::string flat_name = fields.String("name").value_or("");
    fields.End();
    RETURN_IF_ERROR(fields.status());
    if (!flat_name.empty()) return flat_name;
  }
  ASSIGN_OR_RETURN(const NamedMember member, MemberOf(name, fields));
  fields.End();
  RETURN_IF_ERROR(fields.status());
  FieldReader read(*member.object, absl::StrCat(name, ".", member.key, "."), context);
  std::string function_name = read.String("name").value_or("");
  read.End();
  RETURN_IF_ERROR(read.status());
  return function_name;
}

// {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}, or the same object with mode and
// tools as its own members.
absl::Status ReadAllowed(const json& choice, ChatTools& tools, FieldContext& context) {
  const bool is_flat = !choice.contains("allowed_tools");
  const std::string name = is_flat ? "tool_choice" : "tool_choice.allowed_tools";
  const json& object = is_flat ? choice : choice.at("allowed_tools");
  if (!is_flat) {
    FieldReader around(choice, "tool_choice.", context);
    (void)around.String("type");
    (void)around.Find("allowed_tools");
    around.End();
    RETURN_IF_ERROR(around.status());
  }
  if (!object.is_object()) return Refuse(name, ": ", ShowJson(object), ", allowed an object");
  FieldReader fields(object, name + ".", context);
  if (is_flat) (void)fields.String("type");
  tools.choice = fields.String("mode").value_or("");
  if (tools.choice != "auto" && tools.choice != "required") {
    fields.Refuse("mode", absl::StrCat(ShowJson(tools.choice), ", allowed auto, required"));
  }
  const json* list = fields.Find("tools");
  fields.End();
  RETURN_IF_ERROR(fields.status());
  if (list == nullptr || !list->is_array() || list->empty()) {
    return Refuse(name, ".tools: ", list == nullptr ? "absent" : ShowJson(*list),
                  ", allowed a list of functions");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    ASSIGN_OR_RETURN(std::string function,
                     NameOf((*list)[i], absl::StrCat(name, ".tools[", i, "]"), context));
    tools.allowed.push_back(std::move(function));
  }
  return absl::OkStatus();
}

// Reads "auto" or another text, a function, which becomes "function:NAME", or the allowed tools.
absl::Status ReadChoice(const json& choice, ChatTools& tools, FieldContext& context) {
  if (choice.is_string()) {
    tools.choice = choice.get<std::string>();
    return absl::OkStatus();
  }
  if (!choice.is_object()) {
    return Refuse("tool_choice: ", ShowJson(choice),
                  ", allowed auto, none, required, a function or allowed_tools");
  }
  if (choice.value("type", json()) == "allowed_tools") return ReadAllowed(choice, tools, context);
  ASSIGN_OR_RETURN(const std::string name, NameOf(choice, "tool_choice", context));
  tools.choice = std::string(kFunctionChoice) + name;
  return absl::OkStatus();
}

// A call of a custom tool: its text becomes the argument of a function.
absl::StatusOr<ToolCall> ReadCustomCall(const json& object, const std::string& name, FieldContext& context) {
  FieldReader fields(object, name + ".", context);
  ToolCall call;
  call.name = fields.String("name").value_or("");
  call.arguments = CustomArguments(fields.String("input").value_or(""));
  fields.End();
  RETURN_IF_ERROR(fields.status());
  return call;
}

constexpr char kCustomParameters[] =
    R"({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})";

}  // namespace

absl::Status ToolList::ForEach(const json& list, std::string_view text, const std::string& name,
                               const ReadTool& read) {
  if (!list.is_array()) return Refuse(name, ": ", ShowJson(list), ", allowed a list of tools");
  const std::vector<std::string_view> texts = ElementTexts(text);
  CHECK_EQ(texts.size(), list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string member = absl::StrCat(name, "[", i, "]");
    if (!list[i].is_object()) return Refuse(member, ": ", ShowJson(list[i]), ", allowed an object");
    RETURN_IF_ERROR(read(list[i], texts[i], member));
  }
  return absl::OkStatus();
}

void ToolList::Add(ChatTool tool) {
  if (keys_.insert(KeyOf(tool)).second) tools_.push_back(std::move(tool));
}

ChatTool ReadFunctionTool(FieldReader& fields, std::string_view text, const char* schema) {
  ChatTool tool;
  tool.name = fields.String("name").value_or("");
  tool.description = fields.String("description").value_or("");
  tool.strict = fields.Bool("strict", false);
  tool.says_strict = fields.Find("strict") != nullptr;
  tool.deferred = fields.Bool("defer_loading", false);
  if (const json* parameters = fields.Find(schema); parameters != nullptr) {
    if (!parameters->is_object()) {
      fields.Refuse(schema, absl::StrCat(ShowJson(*parameters), ", allowed a JSON schema"));
    }
    tool.parameters = std::string(MemberText(text, schema));
  }
  return tool;
}

std::string SkippedType(const json& object, const char* own, FieldContext& context) {
  const auto type = object.find("type");
  if (type == object.end() || !type->is_string() || *type == own) return "";
  std::string skipped = type->get<std::string>();
  context.notes.Dropped(absl::StrCat("tools[].", skipped.substr(0, FieldNotes::kMostNameBytes)));
  return skipped;
}

void CheckChosen(const ChatTools& tools, const char* field, FieldReader& fields) {
  if (!tools.names_function()) return;
  const bool is_known = std::any_of(tools.tools.begin(), tools.tools.end(),
                                    [&tools](const ChatTool& tool) { return tool.name == tools.function(); });
  if (is_known) return;
  fields.Refuse(field, absl::StrCat(ShowJson(std::string(tools.function())), ", allowed a name in tools"));
}

std::string CustomArguments(std::string_view input) {
  return absl::StrCat("{\"input\": ", QuotedJson(input), "}");
}

ChatTool ReadCustomTool(FieldReader& fields) {
  ChatTool tool;
  tool.name = fields.String("name").value_or("");
  tool.description = fields.String("description").value_or("");
  tool.deferred = fields.Bool("defer_loading", false);
  tool.parameters = kCustomParameters;
  // A grammar for the text would have to hold for the quoted form that it has in the call.
  if (const json* format = fields.Find("format"); format != nullptr && *format != json{{"type", "text"}}) {
    fields.Drop("format");
  }
  return tool;
}

ChatTools ReadTools(FieldReader& fields, std::string_view body, std::set<std::string>& custom) {
  ChatTools read;
  if (const json* list = fields.Find("tools"); list != nullptr) {
    absl::StatusOr<std::vector<ChatTool>> tools = ReadToolList(*list, body, custom, fields.context());
    fields.Keep(tools.status());
    if (tools.ok()) read.tools = *std::move(tools);
  }
  if (const json* choice = fields.Find("tool_choice"); choice != nullptr) {
    fields.Keep(ReadChoice(*choice, read, fields.context()));
    CheckChosen(read, "tool_choice.function.name", fields);
  }
  read.parallel = fields.Bool("parallel_tool_calls", true);
  return read;
}

absl::StatusOr<ToolCall> ReadFunctionCall(const json& object, const std::string& name,
                                          FieldContext& context) {
  FieldReader fields(object, name + ".", context);
  ToolCall call;
  call.name = fields.String("name").value_or("");
  call.arguments = fields.String("arguments").value_or("");
  fields.End();
  RETURN_IF_ERROR(fields.status());
  return call;
}

absl::StatusOr<std::vector<ToolCall>> ReadToolCalls(const json& calls, const std::string& name,
                                                    FieldContext& context) {
  if (!calls.is_array()) return Refuse(name, ": ", ShowJson(calls), ", allowed a list of calls");
  std::vector<ToolCall> read;
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call_name = absl::StrCat(name, "[", i, "]");
    if (!calls[i].is_object()) return Refuse(call_name, ": ", ShowJson(calls[i]), ", allowed an object");
    FieldReader fields(calls[i], call_name + ".", context);
    ToolCall call;
    ASSIGN_OR_RETURN(const NamedMember member, MemberOf(call_name, fields));
    const std::string path = absl::StrCat(call_name, ".", member.key);
    ASSIGN_OR_RETURN(call, IsCustom(calls[i]) ? ReadCustomCall(*member.object, path, context)
                                              : ReadFunctionCall(*member.object, path, context));
    call.id = fields.String("id").value_or("");
    fields.End();
    RETURN_IF_ERROR(fields.status());
    read.push_back(std::move(call));
  }
  return read;
}

}  // namespace foredraft
