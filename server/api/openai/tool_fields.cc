#include "server/api/openai/tool_fields.h"

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
  const auto ordered = nlohmann::ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::vector<ChatTool> tools;
  for (size_t i = 0; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(ChatTool tool,
                     ReadTool(list[i], ordered.at("tools").at(i), absl::StrCat("tools[", i, "]")));
    tools.push_back(std::move(tool));
  }
  return tools;
}

// "auto", or {"type": "function", "function": {"name": ...}}, which becomes "function:NAME".
absl::StatusOr<std::string> ReadChoice(const json& choice) {
  if (choice.is_string()) return choice.get<std::string>();
  if (!choice.is_object()) {
    return Refuse("tool_choice: ", ShowJson(choice), ", allowed auto, none, required or a function");
  }
  FieldReader fields(choice, "tool_choice.");
  ASSIGN_OR_RETURN(const json* function, FunctionOf("tool_choice", fields));
  FieldReader read(*function, "tool_choice.function.");
  const std::string name = read.String("name").value_or("");
  RETURN_IF_ERROR(read.status());
  return absl::StrCat("function:", name);
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
    absl::StatusOr<std::string> name = ReadChoice(*choice);
    fields.Keep(name.status());
    if (name.ok()) read.choice = *std::move(name);
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
