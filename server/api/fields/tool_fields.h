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

// tools, tool_choice, parallel_tool_calls. `body` is the request's text, which has been parsed into what
// `fields` reads: schemas are slices of it. Tools of other types are skipped, and noted; of
// equal tools one counts. `custom` gets the names of custom tools. Faults are kept in `fields`.
ChatTools ReadTools(FieldReader& fields, std::string_view body, std::set<std::string>& custom);

// A list of tools. Equal ones count once.
class ToolList {
 public:
  // `read` is called for each member of the list `name` with its place in the request and its text; `text` is
  // the list's.
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

// Name, description, schema and strict of a function; `text` is that of the object that is read, and `schema`
// what the wire calls the schema.
ChatTool ReadFunctionTool(FieldReader& fields, std::string_view text, const char* schema);
// A custom tool, which is shown as a function with the text `input`, and the arguments of a call of one.
ChatTool ReadCustomTool(FieldReader& fields);
std::string CustomArguments(std::string_view input);
// The type of a tool other than `own` (or none), which the model cannot be told of: it is noted. Else empty.
std::string SkippedType(const nlohmann::json& object, const char* own, FieldContext& context);
// Refuses, as `field`, a choice of a function that is not among the tools.
void CheckChosen(const ChatTools& tools, const char* field, FieldReader& fields);

// A message's tool_calls; `name` is the field's in errors.
absl::StatusOr<std::vector<ToolCall>> ReadToolCalls(const nlohmann::json& calls, const std::string& name,
                                                    FieldContext& context);
// {"name", "arguments"}: the object of a call, or all of a call of OpenAI's first form.
absl::StatusOr<ToolCall> ReadFunctionCall(const nlohmann::json& object, const std::string& name,
                                          FieldContext& context);

}  // namespace foredraft
