#pragma once

// The fields of OpenAI's chat requests about tools.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "server/api/fields/field_reader.h"
#include "server/text/chat_message.h"

namespace foredraft {

// tools, tool_choice, parallel_tool_calls. `body` is the request's text, which has been parsed into what
// `fields` reads: schemas keep the order of its keys. Faults are kept in `fields`.
ChatTools ReadTools(FieldReader& fields, std::string_view body);

// A message's tool_calls; `name` is the field's in errors.
absl::StatusOr<std::vector<ToolCall>> ReadToolCalls(const nlohmann::json& calls, const std::string& name);

}  // namespace foredraft
