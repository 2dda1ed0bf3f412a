#pragma once

// The fields of chat requests about tools, as OpenAI's clients send them.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "server/api/fields/field_reader.h"
#include "server/text/chat_message.h"

namespace foredraft {

// tools, tool_choice, parallel_tool_calls. `body` is the request's text, which has been parsed into what
// `fields` reads: schemas are slices of it. Tools of other types than function are skipped, and noted; of
// equal tools one counts. Faults are kept in `fields`.
ChatTools ReadTools(FieldReader& fields, std::string_view body);

// A message's tool_calls; `name` is the field's in errors.
absl::StatusOr<std::vector<ToolCall>> ReadToolCalls(const nlohmann::json& calls, const std::string& name,
                                                    FieldContext& context);
// {"name", "arguments"}: the object of a call, or all of a call of OpenAI's first form.
absl::StatusOr<ToolCall> ReadFunctionCall(const nlohmann::json& object, const std::string& name,
                                          FieldContext& context);

}  // namespace foredraft
