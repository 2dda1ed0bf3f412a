#pragma once

// The messages of OpenAI's chat requests, as clients of every age send them.

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "server/api/client_request.h"
#include "server/api/fields/field_reader.h"

namespace foredraft {

struct ReadMessagesResult {
  ChatMessages messages;
  // The last message asks for its continuation (`prefix`, `partial`), and can have one.
  bool continues = false;
};

// `messages` null: absent. INVALID_ARGUMENT names the message and its field.
absl::StatusOr<ReadMessagesResult> ReadMessages(const nlohmann::json* messages, FieldContext& context);

}  // namespace foredraft
