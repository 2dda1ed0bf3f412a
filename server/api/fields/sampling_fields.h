#pragma once

// Reads the fields that all JSON wires have: how a request's tokens are chosen, and where they end.

#include "server/api/client_request.h"
#include "server/api/fields/field_reader.h"

namespace foredraft {

// Reads everything of `request` except its input, tools, constraint and token limit.
void ReadCommonFields(FieldReader& fields, ClientRequest& request);

// Reads max_tokens, also as max_completion_tokens, n_predict or `own`, the wire's own name if it has one; of
// several, the last in this order wins. -1 means no limit. Returns the name that the client used.
const char* ReadMaxTokens(FieldReader& fields, ClientRequest& request, const char* own = nullptr);

}  // namespace foredraft
