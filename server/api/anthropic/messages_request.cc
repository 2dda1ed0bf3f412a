#include "server/api/anthropic/messages_request.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/api/anthropic/content_blocks.h"
#include "server/api/conversation/message_gatherer.h"
#include "server/api/fields/constraint_fields.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/fields/thinking_fields.h"
#include "server/api/fields/tool_fields.h"
#include "server/text/json_slice.h"

namespace foredraft {
namespace {

using nlohmann::json;

// {"type": "auto" | "any" | "tool" | "none", "name", "disable_parallel_tool_use"}
void ReadChoice(const json& object, ChatTools& tools, FieldReader& fields) {
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
    CheckChosen(tools, "name", read);
  } else {
    read.Refuse("type", absl::StrCat(ShowJson(type), ", allowed auto, any, tool, none"));
  }
  if (type == "any" && tools.tools.empty())
    read.Refuse("type", "any, allowed with a tool that can be called");
  tools.parallel = !read.Bool("disable_parallel_tool_use", false);
  read.End();
  fields.Keep(read.status());
}

ChatTools ReadMessagesTools(FieldReader& fields, std::string_view body) {
  ChatTools read;
  FieldContext& context = fields.context();
  if (const json* list = fields.Find("tools"); list != nullptr) {
    ToolList tools;
    const auto read_tool = [&](const json& object, std::string_view text, const std::string& name) {
      if (!SkippedType(object, "custom", context).empty()) return absl::OkStatus();
      FieldReader tool(object, name + ".", context);
      (void)tool.String("type");
      tools.Add(ReadFunctionTool(tool, text, "input_schema"));
      tool.End();
      return tool.status();
    };
    fields.Keep(ToolList::ForEach(*list, MemberText(body, "tools"), "tools", read_tool));
    read.tools = tools.Take();
  }
  if (const json* choice = fields.Find("tool_choice"); choice != nullptr) ReadChoice(*choice, read, fields);
  return read;
}

absl::StatusOr<MessagesRequest> ReadObject(const json& object, std::string_view body, FieldContext& context) {
  FieldReader fields(object, "", context);
  MessagesRequest request;
  request.model = fields.String("model").value_or("");
  request.stream = fields.Bool("stream", false);
  ClientRequest& common = request.common;
  common.wire = context.wire;
  common.lowers_max_tokens = true;
  request.max_tokens_field = ReadMaxTokens(fields, common);
  ReadCommonFields(fields, common);
  for (std::string& stop : fields.Strings("stop_sequences")) common.stop.push_back(std::move(stop));
  common.constraint = ReadConstraint(fields, body);
  request.hides_thinking = ReadThinking(fields, common);
  common.tools = ReadMessagesTools(fields, body);
  absl::StatusOr<GatheredMessages> read = ReadContentBlocks(fields, body);
  fields.Keep(read.status());
  fields.End();
  RETURN_IF_ERROR(fields.status());
  common.choices.continues = !read->messages.empty() && CanBeContinued(read->messages.back());
  request.items = std::move(read->items);
  request.prompts.emplace_back(std::move(read->messages));
  return request;
}

}  // namespace

absl::StatusOr<MessagesRequest> ReadMessagesRequest(std::string_view body, const ReadOptions& options) {
  absl::StatusOr<MessagesRequest> request;
  RETURN_IF_ERROR(
      ReadBody(NotedWire::kMessages, body, options, [&](const json& object, FieldContext& context) {
        request = ReadObject(object, body, context);
        if (request.ok()) request->common.notes = context.notes;
        return request.status();
      }));
  return request;
}

}  // namespace foredraft
