#pragma once

// The fields of a request about how its tokens are chosen and where they end, which all JSON wires have.

#include "server/api/client_request.h"
#include "server/api/fields/field_reader.h"

namespace foredraft {

// Everything of `request` but its input, tools, constraint and limit of tokens.
void ReadCommonFields(FieldReader& fields, ClientRequest& request);

// Reads max_tokens, under the names that other servers have for it, too; a later one wins, and `own`, where
// the wire has a name of its own, over all. -1 is an absent limit. Returns the name that the client used.
const char* ReadMaxTokens(FieldReader& fields, ClientRequest& request, const char* own = nullptr);

}  // namespace foredraft
