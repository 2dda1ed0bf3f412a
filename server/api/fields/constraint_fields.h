#pragma once

// What an output must be: in OpenAI's response_format and text.format, in Anthropic's output_config.format,
// in structured_outputs and guided_* of vLLM, and in the names that SGLang has.

#include <optional>
#include <string_view>

#include "server/api/client_request.h"
#include "server/api/fields/field_reader.h"

namespace foredraft {

// Nothing where the request says nothing, or type text. Faults are kept in `fields`. `body`: the text that
// they were read from.
std::optional<ClientConstraint> ReadConstraint(FieldReader& fields, std::string_view body);

// Whether the model is told the schema, as DeepSeek-V4's encoder does: that of an answer's form, such as
// response_format, and not what is meant for the grammar alone.
bool IsShown(const ClientConstraint& constraint);

}  // namespace foredraft
