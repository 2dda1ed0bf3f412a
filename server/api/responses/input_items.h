#pragma once

// The conversation in a request of OpenAI's Responses API: instructions, and a list of items. Several
// items may be one message.

#include <string_view>

#include "absl/status/statusor.h"
#include "server/api/conversation/message_gatherer.h"
#include "server/api/fields/field_reader.h"
#include "server/api/responses/response_tools.h"

namespace foredraft {

// Reads `instructions` and `input`. `body` is the text that `fields` reads. Tools among the items are added
// to `tools`. INVALID_ARGUMENT names the item and its field.
absl::StatusOr<GatheredMessages> ReadInputItems(FieldReader& fields, std::string_view body,
                                                ResponseTools& tools);

}  // namespace foredraft
