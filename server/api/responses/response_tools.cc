#include "server/api/responses/response_tools.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/statusor.h"
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

// {"type": "function" | "custom", "name", "namespace"}
absl::StatusOr<std::string> NameOf(const json& object, const std::string& name, FieldContext& context) {
  if (!object.is_object()) return Refuse(name, ": ", ShowJson(object), ", allowed an object");
  FieldReader fields(object, name + ".", context);
  const std::string type = fields.String("type").value_or("");
  if (type != "function" && type != "custom") {
    fields.Refuse("type", absl::StrCat(ShowJson(type), ", allowed function, custom, allowed_tools"));
  }
  std::string chosen =
      PromptName(fields.String("namespace").value_or(""), fields.String("name").value_or(""));
  fields.End();
  RETURN_IF_ERROR(fields.status());
  return chosen;
}

// {"type": "allowed_tools", "mode", "tools"}
absl::Status ReadAllowed(const json& object, ChatTools& tools, FieldContext& context) {
  FieldReader fields(object, "tool_choice.", context);
  (void)fields.String("type");
  tools.choice = fields.String("mode").value_or("");
  if (tools.choice != "auto" && tools.choice != "required") {
    fields.Refuse("mode", absl::StrCat(ShowJson(tools.choice), ", allowed auto, required"));
  }
  const json* list = fields.Find("tools");
  if (list == nullptr || !list->is_array() || list->empty()) {
    fields.Refuse("tools", "allowed a list of functions");
  }
  fields.End();
  RETURN_IF_ERROR(fields.status());
  for (size_t i = 0; i < list->size(); ++i) {
    ASSIGN_OR_RETURN(std::string name,
                     NameOf((*list)[i], absl::StrCat("tool_choice.tools[", i, "]"), context));
    tools.allowed.push_back(std::move(name));
  }
  return absl::OkStatus();
}

absl::Status ReadChoice(const json& choice, ChatTools& tools, FieldContext& context) {
  if (choice.is_string()) {
    tools.choice = choice.get<std::string>();
    return absl::OkStatus();
  }
  if (choice.is_object() && choice.value("type", json()) == "allowed_tools") {
    return ReadAllowed(choice, tools, context);
  }
  ASSIGN_OR_RETURN(const std::string name, NameOf(choice, "tool_choice", context));
  tools.choice = std::string(kFunctionChoice) + name;
  return absl::OkStatus();
}

}  // namespace

std::string PromptName(const std::string& name_space, const std::string& name) {
  return name_space.empty() ? name : absl::StrCat(name_space, "__", name);
}

void ResponseTools::Add(ChatTool tool, SentTool sent) {
  tool.name = PromptName(sent.name_space, sent.name);
  if (sent.is_custom || !sent.name_space.empty()) sent_.emplace(tool.name, std::move(sent));
  tools_.Add(std::move(tool));
}

absl::Status ResponseTools::AddTool(const json& object, std::string_view text, const std::string& name,
                                    const std::string& name_space, FieldContext& context) {
  const std::string type = object.value("type", json()) == "custom" ? "custom" : "function";
  if (type == "function" && !SkippedType(object, "function", context).empty()) return absl::OkStatus();
  FieldReader fields(object, name + ".", context);
  (void)fields.String("type");
  ChatTool tool = type == "custom" ? ReadCustomTool(fields) : ReadFunctionTool(fields, text, "parameters");
  fields.End();
  SentTool sent = {.name = tool.name, .name_space = name_space, .is_custom = type == "custom"};
  Add(std::move(tool), std::move(sent));
  return fields.status();
}

absl::Status ResponseTools::AddList(const json& list, std::string_view text, const std::string& name,
                                    FieldContext& context) {
  return ToolList::ForEach(
      list, text, name,
      [&](const json& object, std::string_view tool_text, const std::string& path) -> absl::Status {
        if (object.value("type", json()) != "namespace") return AddTool(object, tool_text, path, "", context);
        FieldReader fields(object, path + ".", context);
        (void)fields.String("type");
        const std::string name_space = fields.String("name").value_or("");
        (void)fields.String("description");  // the namespace's; the prompt has each tool's own
        const json* members = fields.Find("tools");
        fields.End();
        RETURN_IF_ERROR(fields.status());
        if (members == nullptr) return absl::OkStatus();
        return ToolList::ForEach(
            *members, MemberText(tool_text, "tools"), path + ".tools",
            [&](const json& member, std::string_view member_text, const std::string& member_path) {
              return AddTool(member, member_text, member_path, name_space, context);
            });
      });
}

ChatTools ResponseTools::Take(FieldReader& fields) {
  ChatTools read;
  read.tools = tools_.Take();
  if (const json* choice = fields.Find("tool_choice"); choice != nullptr) {
    fields.Keep(ReadChoice(*choice, read, fields.context()));
    CheckChosen(read, "tool_choice.name", fields);
  }
  read.parallel = fields.Bool("parallel_tool_calls", true);
  return read;
}

}  // namespace foredraft
