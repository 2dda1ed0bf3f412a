#include "server/api/fields/tool_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/json_text.h"

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

// `parameters` in the order of the client's keys, or null.
absl::StatusOr<ChatTool> ReadTool(const json& object, const nlohmann::ordered_json& ordered,
                                  const std::string& name) {
  if (!object.is_object()) return Refuse(name, ": ", ShowJson(object), ", allowed an object");
  FieldReader fields(object, name + ".");
  ASSIGN_OR_RETURN(const json* function, FunctionOf(name, fields));
  fields.RefuseUnknown();
  RETURN_IF_ERROR(fields.status());
  FieldReader read(*function, name + ".function.");
  ChatTool tool;
  tool.name = read.String("name").value_or("");
  tool.description = read.String("description").value_or("");
  tool.strict = read.Bool("strict", false);
  if (const json* parameters = read.Find("parameters"); parameters != nullptr) {
    if (!parameters->is_object()) {
      read.Refuse("parameters", absl::StrCat(ShowJson(*parameters), ", allowed a JSON schema"));
    }
    tool.parameters = ordered.at("function").at("parameters").dump();
  }
  read.RefuseUnknown();
  RETURN_IF_ERROR(read.status());
  return tool;
}

absl::StatusOr<std::vector<ChatTool>> ReadToolList(const json& list, std::string_view body) {
  if (!list.is_array()) return Refuse("tools: ", ShowJson(list), ", allowed a list of tools");
  auto ordered = nlohmann::ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
  const JsonRelease<nlohmann::ordered_json> release(ordered);
  std::vector<ChatTool> tools;
  for (size_t i = 0; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(ChatTool tool,
                     ReadTool(list[i], ordered.at("tools").at(i), absl::StrCat("tools[", i, "]")));
    tools.push_back(std::move(tool));
  }
  return tools;
}

// The name in {"type": "function", "function": {"name": ...}}, or, as in OpenAI's responses API, in
// {"type": "function", "name": ...}.
absl::StatusOr<std::string> NameOf(const json& object, const std::string& name) {
  if (!object.is_object()) return Refuse(name, ": ", ShowJson(object), ", allowed an object");
  FieldReader fields(object, name + ".");
  if (!object.contains("function") && object.value("type", json()) == "function") {
    std::string flat_name = fields.String("name").value_or("");
    fields.Ignore({"type"});
    fields.RefuseUnknown();
    RETURN_IF_ERROR(fields.status());
    if (!flat_name.empty()) return flat_name;
  }
  ASSIGN_OR_RETURN(const json* function, FunctionOf(name, fields));
  fields.RefuseUnknown();
  RETURN_IF_ERROR(fields.status());
  FieldReader read(*function, name + ".function.");
  std::string function_name = read.String("name").value_or("");
  read.RefuseUnknown();
  RETURN_IF_ERROR(read.status());
  return function_name;
}

// {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}, or mode and tools beside the
// type.
absl::Status ReadAllowed(const json& choice, ChatTools& tools) {
  const bool is_flat = !choice.contains("allowed_tools");
  const std::string name = is_flat ? "tool_choice" : "tool_choice.allowed_tools";
  const json& object = is_flat ? choice : choice.at("allowed_tools");
  if (!is_flat) {
    FieldReader around(choice, "tool_choice.");
    around.Ignore({"type", "allowed_tools"});
    around.RefuseUnknown();
    RETURN_IF_ERROR(around.status());
  }
  if (!object.is_object()) return Refuse(name, ": ", ShowJson(object), ", allowed an object");
  FieldReader fields(object, name + ".");
  if (is_flat) fields.Ignore({"type"});
  tools.choice = fields.String("mode").value_or("");
  if (tools.choice != "auto" && tools.choice != "required") {
    fields.Refuse("mode", absl::StrCat(ShowJson(tools.choice), ", allowed auto, required"));
  }
  const json* list = fields.Find("tools");
  fields.RefuseUnknown();
  RETURN_IF_ERROR(fields.status());
  if (list == nullptr || !list->is_array() || list->empty()) {
    return Refuse(name, ".tools: ", list == nullptr ? "absent" : ShowJson(*list),
                  ", allowed a list of functions");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    ASSIGN_OR_RETURN(std::string function, NameOf((*list)[i], absl::StrCat(name, ".tools[", i, "]")));
    tools.allowed.push_back(std::move(function));
  }
  return absl::OkStatus();
}

// "auto" and other texts, a function, which becomes "function:NAME", or the tools that are allowed.
absl::Status ReadChoice(const json& choice, ChatTools& tools) {
  if (choice.is_string()) {
    tools.choice = choice.get<std::string>();
    return absl::OkStatus();
  }
  if (!choice.is_object()) {
    return Refuse("tool_choice: ", ShowJson(choice),
                  ", allowed auto, none, required, a function or allowed_tools");
  }
  if (choice.value("type", json()) == "allowed_tools") return ReadAllowed(choice, tools);
  ASSIGN_OR_RETURN(const std::string name, NameOf(choice, "tool_choice"));
  tools.choice = std::string(kFunctionChoice) + name;
  return absl::OkStatus();
}

}  // namespace

ChatTools ReadTools(FieldReader& fields, std::string_view body) {
  ChatTools read;
  if (const json* list = fields.Find("tools"); list != nullptr) {
    absl::StatusOr<std::vector<ChatTool>> tools = ReadToolList(*list, body);
    fields.Keep(tools.status());
    if (tools.ok()) read.tools = *std::move(tools);
  }
  if (const json* choice = fields.Find("tool_choice"); choice != nullptr) {
    fields.Keep(ReadChoice(*choice, read));
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

absl::StatusOr<std::vector<ToolCall>> ReadToolCalls(const json& calls, const std::string& name) {
  if (!calls.is_array()) return Refuse(name, ": ", ShowJson(calls), ", allowed a list of calls");
  std::vector<ToolCall> read;
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call_name = absl::StrCat(name, "[", i, "]");
    if (!calls[i].is_object()) return Refuse(call_name, ": ", ShowJson(calls[i]), ", allowed an object");
    FieldReader fields(calls[i], call_name + ".");
    ToolCall call;
    call.id = fields.String("id").value_or("");
    fields.Ignore({"index"});  // of a streamed call, which clients send back
    ASSIGN_OR_RETURN(const json* function, FunctionOf(call_name, fields));
    fields.RefuseUnknown();
    RETURN_IF_ERROR(fields.status());
    FieldReader read_function(*function, call_name + ".function.");
    call.name = read_function.String("name").value_or("");
    call.arguments = read_function.String("arguments").value_or("");
    read_function.RefuseUnknown();
    RETURN_IF_ERROR(read_function.status());
    read.push_back(std::move(call));
  }
  return read;
}

}  // namespace foredraft
