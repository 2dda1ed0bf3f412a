#pragma once

// Reads requests of Anthropic's Messages API from JSON, for RequestValidator to check. Every field has a
// class (server/api/fields/field_classes.h, docs/client-fields.md).

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/api/fields/request_body.h"
#include "server/api/http/wire_request.h"

namespace foredraft {

struct MessagesRequest : WireRequest {
  bool hides_thinking = false;                  // thinking is left out of the answer
  std::vector<int> items;                       // GatheredMessages::items
  const char* max_tokens_field = "max_tokens";  // as the client calls it
};

// INVALID_ARGUMENT names the field, its value and what is allowed.
absl::StatusOr<MessagesRequest> ReadMessagesRequest(std::string_view body, const ReadOptions& options = {});

}  // namespace foredraft
