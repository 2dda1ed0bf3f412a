#pragma once

// The fields of chat requests about tools, as OpenAI's clients send them.

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "server/api/fields/field_reader.h"
#include "server/text/chat_message.h"

namespace foredraft {

// Reads tools, tool_choice and parallel_tool_calls. `fields` has been parsed from `body`, of which schemas
// are slices. Tools of other types are skipped and noted; equal tools count once. `custom` gets the names of
// custom tools. Faults are kept in `fields`.
ChatTools ReadTools(FieldReader& fields, std::string_view body, std::set<std::string>& custom);

// A list of tools. Equal ones count once.
class ToolList {
 public:
  // `read` is called for each member of the list `name` with the member's text and its place in the request,
  // such as "tools[3]". `text` is the list's.
  using ReadTool = std::function<absl::Status(const nlohmann::json& object, std::string_view text,
                                              const std::string& name)>;
  static absl::Status ForEach(const nlohmann::json& list, std::string_view text, const std::string& name,
                              const ReadTool& read);

  void Add(ChatTool tool);
  std::vector<ChatTool> Take() { return std::move(tools_); }

 private:
  std::vector<ChatTool> tools_;
  absl::flat_hash_set<std::string> keys_;
};

// Reads name, description, schema and strict of a function. `text` is the text of the object that `fields`
// reads, and `schema` the wire's name for the schema.
ChatTool ReadFunctionTool(FieldReader& fields, std::string_view text, const char* schema);
// Reads a custom tool, which the model sees as a function with a string `input`. CustomArguments makes the
// arguments of a call of it.
ChatTool ReadCustomTool(FieldReader& fields);
std::string CustomArguments(std::string_view input);
// Empty for a tool of type `own` or without a type. Returns and notes any other type: the model cannot be
// told of such a tool.
std::string SkippedType(const nlohmann::json& object, const char* own, FieldContext& context);
// Refuses, as `field`, a choice of a function that is not among the tools.
void CheckChosen(const ChatTools& tools, const char* field, FieldReader& fields);

// Reads a message's tool_calls; errors call the field `name`.
absl::StatusOr<std::vector<ToolCall>> ReadToolCalls(const nlohmann::json& calls, const std::string& name,
                                                    FieldContext& context);
// Reads {"name", "arguments"}: the function of a call, or a whole function_call of OpenAI's first form.
absl::StatusOr<ToolCall> ReadFunctionCall(const nlohmann::json& object, const std::string& name,
                                          FieldContext& context);

}  // namespace foredraft
