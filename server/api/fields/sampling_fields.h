#pragma once

// The fields of a request about how its tokens are chosen and where they end, which all JSON wires have.

#include "server/api/client_request.h"
#include "server/api/fields/field_reader.h"

namespace foredraft {

// Everything of `request` but its input, tools, constraint and limit of tokens.
void ReadCommonFields(FieldReader& fields, ClientRequest& request);

// Reads max_tokens under one of its names; a later one wins. -1 is an absent limit.
void ReadMaxTokens(FieldReader& fields, const char* field, ClientRequest& request);

}  // namespace foredraft
