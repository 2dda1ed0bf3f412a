#pragma once

// The fields of a request about the answer's thinking: the spellings of OpenAI's, Anthropic's and other
// servers' clients, read by one reader.

#include "server/api/client_request.h"
#include "server/api/fields/field_reader.h"

namespace foredraft {

// Sets the request's choices, including its constraint's schema if the model is told it, and its thinking
// budget, unless thinking_token_budget has been read. Where fields contradict each other, off wins over on,
// and the request's own reasoning_effort over other efforts. Returns whether thinking is left out of the
// answer; it is computed and counted all the same.
bool ReadThinking(FieldReader& fields, ClientRequest& request);

}  // namespace foredraft
