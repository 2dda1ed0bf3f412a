#pragma once

// Reads what an output must be: from OpenAI's response_format and text.format, Anthropic's
// output_config.format, vLLM's structured_outputs and guided_*, and SGLang's names.

#include <optional>
#include <string_view>

#include "server/api/client_request.h"
#include "server/api/fields/field_reader.h"

namespace foredraft {

// The request's constraint; nullopt if it has none, or type text. Faults are kept in `fields`, which were
// read from `body`.
std::optional<ClientConstraint> ReadConstraint(FieldReader& fields, std::string_view body);

// Whether the model is told the schema, as DeepSeek-V4's encoder does. It is told the schema of an answer's
// form, such as response_format, and not one that is meant for the grammar alone.
bool IsShown(const ClientConstraint& constraint);

}  // namespace foredraft
