#include "server/api/fields/tool_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_set.h"
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

// The object `name`.function of an object of type function.
absl::StatusOr<const json*> FunctionOf(const std::string& name, FieldReader& fields) {
  const std::string type = fields.String("type").value_or("function");
  if (type != "function") fields.Refuse("type", absl::StrCat(ShowJson(type), ", allowed function"));
  const json* function = fields.Find("function");
  RETURN_IF_ERROR(fields.status());
  if (function != nullptr && function->is_object()) return function;
  return Refuse(name, ".function: ", function == nullptr ? "absent" : ShowJson(*function),
                ", allowed an object");
}

// `text` is the text of `object`.
absl::StatusOr<ChatTool> ReadTool(const json& object, std::string_view text, const std::string& name,
                                  FieldContext& context) {
  FieldReader fields(object, name + ".", context);
  ASSIGN_OR_RETURN(const json* function, FunctionOf(name, fields));
  ChatTool tool;
  tool.deferred = fields.Bool("defer_loading", false);
  fields.End();
  RETURN_IF_ERROR(fields.status());
  FieldReader read(*function, name + ".function.", context);
  tool.name = read.String("name").value_or("");
  tool.description = read.String("description").value_or("");
  tool.strict = read.Bool("strict", false);
  tool.says_strict = read.Find("strict") != nullptr;
  tool.deferred |= read.Bool("defer_loading", false);
  if (const json* parameters = read.Find("parameters"); parameters != nullptr) {
    if (!parameters->is_object()) {
      read.Refuse("parameters", absl::StrCat(ShowJson(*parameters), ", allowed a JSON schema"));
    }
    tool.parameters = std::string(MemberText(MemberText(text, "function"), "parameters"));
  }
  read.End();
  RETURN_IF_ERROR(read.status());
  return tool;
}

// The type of a tool that is no function, which the model cannot be told of; empty for a function.
std::string SkippedType(const json& object) {
  const auto type = object.find("type");
  if (type == object.end() || !type->is_string() || *type == "function") return "";
  return type->get<std::string>();
}

// Everything that tells a tool from another, with its schema in one spacing.
std::string KeyOf(const ChatTool& tool) {
  return absl::StrCat(FunctionJson(tool, JsonSpacing::kCompact), tool.deferred);
}

absl::StatusOr<std::vector<ChatTool>> ReadToolList(const json& list, std::string_view body,
                                                   FieldContext& context) {
  if (!list.is_array()) return Refuse("tools: ", ShowJson(list), ", allowed a list of tools");
  const std::vector<std::string_view> texts = ElementTexts(MemberText(body, "tools"));
  CHECK_EQ(texts.size(), list.size());
  std::vector<ChatTool> tools;
  absl::flat_hash_set<std::string> keys;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = absl::StrCat("tools[", i, "]");
    if (!list[i].is_object()) return Refuse(name, ": ", ShowJson(list[i]), ", allowed an object");
    if (const std::string type = SkippedType(list[i]); !type.empty()) {
      context.notes.Dropped(absl::StrCat("tools[].", type.substr(0, FieldNotes::kMostNameBytes)));
      continue;
    }
    ASSIGN_OR_RETURN(ChatTool tool, ReadTool(list[i], texts[i], name, context));
    if (keys.insert(KeyOf(tool)).second) tools.push_back(std::move(tool));
  }
  return tools;
}

// The name in {"type": "function", "function": {"name": ...}}, or, as in OpenAI's responses API, in
// {"type": "function", "name": ...}.
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
  ASSIGN_OR_RETURN(const json* function, FunctionOf(name, fields));
  fields.End();
  RETURN_IF_ERROR(fields.status());
  FieldReader read(*function, name + ".function.", context);
  std::string function_name = read.String("name").value_or("");
  read.End();
  RETURN_IF_ERROR(read.status());
  return function_name;
}

// {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}, or mode and tools beside the
// type.
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

// "auto" and other texts, a function, which becomes "function:NAME", or the tools that are allowed.
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

// A call of a custom tool, whose text becomes the argument `input` of a function.
absl::StatusOr<ToolCall> ReadCustomCall(const std::string& name, FieldReader& fields) {
  (void)fields.String("type");
  const json* custom = fields.Find("custom");
  if (custom == nullptr || !custom->is_object()) {
    return Refuse(name, ".custom: ", custom == nullptr ? "absent" : ShowJson(*custom), ", allowed an object");
  }
  FieldReader read(*custom, name + ".custom.", fields.context());
  ToolCall call;
  call.name = read.String("name").value_or("");
  call.arguments = absl::StrCat("{\"input\": ", QuotedJson(read.String("input").value_or("")), "}");
  read.End();
  RETURN_IF_ERROR(read.status());
  return call;
}

}  // namespace

ChatTools ReadTools(FieldReader& fields, std::string_view body) {
  ChatTools read;
  if (const json* list = fields.Find("tools"); list != nullptr) {
    absl::StatusOr<std::vector<ChatTool>> tools = ReadToolList(*list, body, fields.context());
    fields.Keep(tools.status());
    if (tools.ok()) read.tools = *std::move(tools);
  }
  if (const json* choice = fields.Find("tool_choice"); choice != nullptr) {
    fields.Keep(ReadChoice(*choice, read, fields.context()));
    const bool is_known = std::any_of(read.tools.begin(), read.tools.end(), [&read](const ChatTool& tool) {
      return !read.names_function() || tool.name == read.function();
    });
    if (read.names_function() && !is_known) {
      fields.Refuse("tool_choice.function.name",
                    absl::StrCat(ShowJson(std::string(read.function())), ", allowed a name in tools"));
    }
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
    if (calls[i].value("type", json()) == "custom") {
      ASSIGN_OR_RETURN(call, ReadCustomCall(call_name, fields));
    } else {
      ASSIGN_OR_RETURN(const json* function, FunctionOf(call_name, fields));
      ASSIGN_OR_RETURN(call, ReadFunctionCall(*function, call_name + ".function", context));
    }
    call.id = fields.String("id").value_or("");
    fields.End();
    RETURN_IF_ERROR(fields.status());
    read.push_back(std::move(call));
  }
  return read;
}

}  // namespace foredraft
