#include "server/api/anthropic/messages_tools.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "config/json_text.h"
#include "server/text/conversation_check.h"
#include "server/text/json_slice.h"

namespace foredraft {
namespace {

using nlohmann::json;

std::string NameIn(const json& object) {
  const auto name = object.find("name");
  return name != object.end() && name->is_string() ? name->get<std::string>() : "";
}

// The object that `field` must be; null if it is refused.
const json* RequiredObject(FieldReader& fields, const char* field) {
  const json* object = fields.Find(field);
  if (object != nullptr && object->is_object()) return object;
  fields.Refuse(
      field, object == nullptr ? "absent, required" : absl::StrCat(ShowJson(*object), ", allowed an object"));
  return nullptr;
}

}  // namespace

std::optional<ChatTool> MessagesTools::ReadDefinition(const json& object, std::string_view text,
                                                      const std::string& name, FieldReader& around) {
  if (!SkippedType(object, "custom", around.context()).empty()) {
    skipped_.insert(NameIn(object));
    return std::nullopt;
  }
  FieldReader fields(object, name + ".", around.context());
  (void)fields.String("type");
  ChatTool tool = ReadFunctionTool(fields, text, "input_schema");
  fields.End();
  around.Keep(fields.status());
  if (!fields.status().ok()) return std::nullopt;
  return tool;
}

void MessagesTools::ReadList(FieldReader& fields, std::string_view body) {
  const json* list = fields.Find("tools");
  if (list == nullptr) return;
  const auto read_tool = [&](const json& object, std::string_view text, const std::string& name) {
    std::optional<ChatTool> tool = ReadDefinition(object, text, name, fields);
    if (tool) list_.Add(*std::move(tool));
    return fields.status();
  };
  fields.Keep(ToolList::ForEach(*list, MemberText(body, "tools"), "tools", read_tool));
}

void MessagesTools::ReadChange(FieldReader& block, std::string_view text, const std::string& type,
                               ChatMessage& message) {
  const json* tool = RequiredObject(block, "tool");
  if (tool == nullptr) return;
  ToolChange change{.removes = type == "tool_removal", .at = message.content.size()};
  FieldReader fields(*tool, block.path() + "tool.", block.context());
  const std::string kind = fields.String("type").value_or("");
  bool has_effect = true;
  if (kind == "tool_reference") {
    change.name = fields.String("name").value_or("");
    if (change.name.empty()) fields.Refuse("name", "absent or empty, required");
    has_effect = !skipped_.contains(change.name);
  } else if (kind == "tool_definition" && !change.removes) {
    const json* object = RequiredObject(fields, "definition");
    if (object != nullptr) {
      const std::string_view slice = MemberText(MemberText(text, "tool"), "definition");
      change.definition = ReadDefinition(*object, slice, fields.path() + "definition", fields);
    }
    has_effect = change.definition.has_value();
    if (has_effect) change.name = change.definition->name;
    if (has_effect && !IsToolName(change.name)) {
      fields.Refuse("definition.name", absl::StrCat(ShowJson(change.name), ", allowed 1..", kMaxToolNameBytes,
                                                    " letters, digits, _, - and ."));
    }
  } else if (kind == "mcp_tool_reference" || kind == "mcp_toolset_reference") {
    (void)fields.String("name");
    has_effect = false;  // the daemon calls no MCP server
  } else {
    fields.Refuse("type", absl::StrCat(ShowJson(kind), ", allowed tool_reference",
                                       change.removes ? "" : ", tool_definition",
                                       ", mcp_tool_reference, mcp_toolset_reference"));
  }
  fields.End();
  block.Keep(fields.status());
  if (!has_effect) return block.Drop(type);
  has_removed_ |= change.removes;
  if (change.definition) {
    skipped_.erase(change.name);
    defined_.insert(change.name);
  }
  message.tool_changes.push_back(std::move(change));
}

// {"type": "auto" | "any" | "tool" | "none", "name", "disable_parallel_tool_use"}
void MessagesTools::ReadChoice(const json& object, ChatTools& tools, FieldReader& fields) const {
  if (!object.is_object()) {
    return fields.Refuse("tool_choice", absl::StrCat(ShowJson(object), ", allowed an object"));
  }
  FieldReader read(object, "tool_choice.", fields.context());
  const std::string type = read.String("type").value_or("");
  const std::string name = read.String("name").value_or("");
  if (type == "auto" || type == "none") {
    tools.choice = type;
  } else if (type == "any") {
    tools.choice = "required";
  } else if (type == "tool") {
    tools.choice = std::string(kFunctionChoice) + name;
    if (!defined_.contains(name)) CheckChosen(tools, "name", read);
  } else {
    read.Refuse("type", absl::StrCat(ShowJson(type), ", allowed auto, any, tool, none"));
  }
  if (type == "any" && tools.tools.empty() && defined_.empty())
    read.Refuse("type", "any, allowed with a tool that can be called");
  tools.parallel = !read.Bool("disable_parallel_tool_use", false);
  read.End();
  fields.Keep(read.status());
}

ChatTools MessagesTools::Take(FieldReader& fields) {
  ChatTools read;
  read.tools = list_.Take();
  read.has_removed = has_removed_;
  if (const json* choice = fields.Find("tool_choice"); choice != nullptr) ReadChoice(*choice, read, fields);
  return read;
}

}  // namespace foredraft
